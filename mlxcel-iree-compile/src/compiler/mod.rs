//! The IREE compiler, run as a child process: a program that crashes it, or takes all memory, is an error of ours and
//! not the end of the application.

mod diagnostics;
mod identity;
mod locate;

#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use mlxcel_core::{CancelToken, Error, ErrorKind, Result};
use mlxcel_iree_target::{RELEASE, ResolvedTarget, Revision, process};
use mlxcel_models::files::Workplace;

pub use identity::Identity;
use locate::SearchEnvironment;

/// How long the compiler may take to say which one it is.
const VERSION_LIMIT: Duration = Duration::from_secs(60);

/// The IREE compiler of this machine.
#[derive(Clone, Debug)]
pub struct Compiler {
    path: PathBuf,
}

/// What a program is compiled for, and how.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CompileOptions {
    /// The device and processor.
    pub target: ResolvedTarget,
    /// Flags beyond those of the target, such as `--iree-opt-level=O3`.
    pub flags: Vec<String>,
    /// The program in words, for people who look into the cache.
    pub label: String,
}

impl CompileOptions {
    /// Fully optimised code for `target`.
    pub fn new(target: ResolvedTarget) -> Self {
        // Without a level the compiler does not optimise: a matrix-vector product is several times slower.
        let flags = ["--iree-input-type=stablehlo", "--iree-opt-level=O3"].map(str::to_owned).to_vec();
        Self { target, flags, label: String::new() }
    }

    /// The same for a program that is called `label` in the cache.
    pub fn with_label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// All flags, in the order in which the compiler gets them.
    pub fn all_flags(&self) -> impl Iterator<Item = &str> {
        self.flags.iter().chain(self.target.options()).map(String::as_str)
    }
}

impl Compiler {
    /// Finds the compiler: `path` if it is given, else the one that `MLXCEL_IREE_COMPILER` names, else that of the
    /// distribution in `IREE_DIST`, else the first in: the absolute folders of `PATH`, the active Python environment,
    /// the packages of the Python on `PATH`, the user's Python packages. No program is started for it, Python least of all. The
    /// environment is read now; nothing is remembered.
    ///
    /// # Errors
    /// [`ErrorKind::Toolchain`] when a place that was named has no compiler, or no place has: then the error lists
    /// where it was looked for and has the line that installs it.
    pub fn locate(path: Option<&Path>) -> Result<Self> {
        Self::locate_if_any(path)?.ok_or_else(Self::not_found)
    }

    /// [`locate`](Self::locate), but `None` where no place has a compiler.
    ///
    /// # Errors
    /// [`ErrorKind::Toolchain`] when a place that was named has no compiler.
    pub fn locate_if_any(path: Option<&Path>) -> Result<Option<Self>> {
        Ok(SearchEnvironment::now().find(path)?.map(|path| Self { path }))
    }

    /// The error of a search that found nothing.
    pub(crate) fn not_found() -> Error {
        SearchEnvironment::now().nowhere()
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Asks the compiler which one it is, and compares its release with that of the runtime that is linked.
    ///
    /// # Errors
    /// [`ErrorKind::Toolchain`] when it does not say, or is of another release: what it makes would not load.
    pub fn revision(&self, cancel: Option<&CancelToken>) -> Result<Revision> {
        let operation = "ask the IREE compiler for its version";
        let located = |error: Error| error.with_context("compiler", self.path.display());
        let mut command = Command::new(&self.path);
        // A script in its place finds nothing of the working directory.
        command.arg("--version").current_dir(self.path.parent().unwrap_or(Path::new("/")));
        let finished = process::run(&mut command, cancel, Some(VERSION_LIMIT)).map_err(|failure| {
            located(failure.into_error(operation, ErrorKind::Toolchain, "the compiler could not be started"))
        })?;
        let revision = finished.status.success().then(|| Revision::parse(&finished.stdout)).flatten();
        let revision = revision.ok_or_else(|| {
            let (_, _, output) = diagnostics::describe(&finished);
            located(Error::new(ErrorKind::Toolchain, operation, "it does not report a version of IREE"))
                .with_source(output)
        })?;
        self.expect_release(&revision)?;
        Ok(revision)
    }

    /// Refuses a compiler whose release is not the runtime's.
    pub fn expect_release(&self, revision: &Revision) -> Result<()> {
        let runtime = RELEASE;
        if revision.release() == Some(runtime) {
            return Ok(());
        }
        let message = format!(
            "the compiler is of release {}, the runtime of release {runtime}; get the compiler that fits with \
             `pip install iree-base-compiler=={runtime}`",
            revision.release().unwrap_or(revision.as_str()),
        );
        Err(Error::new(ErrorKind::Toolchain, "compare the IREE compiler with the runtime", message)
            .with_context("compiler", self.path.display())
            .with_context("compiler revision", revision)
            .with_context("runtime revision", runtime))
    }

    /// Compiles a program in MLIR text into a file that the runtime loads.
    ///
    /// The child works in a private folder that is gone afterwards. `cancel` kills it.
    ///
    /// # Errors
    /// [`ErrorKind::Compile`] with the first diagnostic, when the compiler refuses the program or dies;
    /// [`ErrorKind::ResourceExhausted`] when it says that disk or memory ran out; [`ErrorKind::Cancelled`].
    pub fn compile(
        &self,
        program: &str,
        options: &CompileOptions,
        cancel: Option<&CancelToken>,
    ) -> Result<Vec<u8>> {
        let operation = "compile a program";
        let temporary = std::env::temp_dir();
        let folder = Workplace::begin(&temporary, "mlxcel-iree-")
            .map_err(|source| Error::io(operation, &temporary, source))?;
        let (input, output) = (folder.path().join("program.mlir"), folder.path().join("program.vmfb"));
        fs::write(&input, program).map_err(|source| Error::io(operation, &input, source))?;
        let mut command = Command::new(&self.path);
        command.args(options.all_flags());
        // Diagnostics name the place; the operation that stands there can be the whole program.
        command.arg("--mlir-print-op-on-diagnostic=false");
        // Relative names keep the private folder out of diagnostics and, as debug information, out of the artifact.
        command.args(["program.mlir", "-o", "program.vmfb"]).current_dir(folder.path());
        let located = |error: Error| error.with_context("compiler", self.path.display());
        let finished = process::run(&mut command, cancel, None).map_err(|failure| {
            located(failure.into_error(operation, ErrorKind::Toolchain, "the compiler could not be started"))
        })?;
        if !finished.status.success() {
            // An application that is being interrupted has its compiler interrupted too.
            if cancel.is_some_and(CancelToken::is_cancelled) {
                return Err(Error::new(ErrorKind::Cancelled, operation, "the work was cancelled"));
            }
            let (kind, message, words) = diagnostics::describe(&finished);
            return Err(located(Error::new(kind, operation, message)).with_source(words));
        }
        match fs::read(&output) {
            Ok(bytes) if !bytes.is_empty() => Ok(bytes),
            Ok(_) => {
                Err(located(Error::new(ErrorKind::Compile, operation, "the compiler wrote an empty file")))
            }
            Err(source) if source.kind() == std::io::ErrorKind::NotFound => Err(located(Error::new(
                ErrorKind::Compile,
                operation,
                "the compiler reported success and wrote nothing",
            ))),
            Err(source) => Err(Error::io(operation, &output, source)),
        }
    }
}
