//! The IREE compiler, run as a child process: if it crashes or runs out of memory, the application gets an
//! error.

mod diagnostics;
mod identity;
mod locate;

#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use mlxcel_core::{CancelToken, Control, Error, ErrorKind, Result};
use mlxcel_iree_target::{CPU_BACKEND, RELEASE, ResolvedTarget, Revision, process};
use mlxcel_models::files::{Workplace, read_regular};

pub use identity::Identity;
use locate::SearchEnvironment;

/// How long the compiler may take to say which one it is.
const VERSION_LIMIT: Duration = Duration::from_secs(60);
/// The most bytes of a compiled program.
const LONGEST_PROGRAM: u64 = 1 << 30;

/// The IREE compiler of this machine.
#[derive(Clone, Debug)]
pub struct Compiler {
    path: PathBuf,
}

/// Options of compiling a program.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CompileOptions {
    /// The compile target.
    pub target: ResolvedTarget,
    /// Flags beyond those of the target, such as `--iree-opt-level=O3`.
    pub flags: Vec<String>,
    /// A description of the program, for listings of the cache.
    pub label: String,
}

impl CompileOptions {
    /// Optimized code for `target`.
    pub fn new(target: ResolvedTarget) -> Self {
        // Without a level the compiler does not optimise: a matrix-vector product is several times slower.
        let flags = ["--iree-input-type=stablehlo", "--iree-opt-level=O3"].map(str::to_owned).to_vec();
        Self { target, flags, label: String::new() }
    }

    /// Sets the description of the program in the cache.
    pub fn with_label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// All flags, in the compiler's order.
    pub fn all_flags(&self) -> impl Iterator<Item = &str> {
        self.flags.iter().chain(self.target.options()).map(String::as_str)
    }
}

impl Compiler {
    /// Finds the compiler: `path`, else `MLXCEL_IREE_COMPILER`, else that of the distribution in `IREE_DIST`,
    /// else the first one in the absolute folders of `PATH`, the active Python environment, the packages
    /// of the Python on `PATH`, and the user's Python packages. This starts no program, in particular not
    /// Python. The environment is read on every call.
    ///
    /// # Errors
    /// [`ErrorKind::Toolchain`] if a named location has no compiler, or no location has one: the error lists
    /// the locations searched and the command that installs it.
    pub fn locate(path: Option<&Path>) -> Result<Self> {
        Self::locate_if_any(path)?.ok_or_else(Self::not_found)
    }

    /// As [`locate`](Self::locate), but `None` if no location has a compiler.
    ///
    /// # Errors
    /// [`ErrorKind::Toolchain`] if a named location has no compiler.
    pub fn locate_if_any(path: Option<&Path>) -> Result<Option<Self>> {
        Ok(SearchEnvironment::now().find(path)?.map(|path| Self { path }))
    }

    /// The error of a search that found nothing.
    pub(crate) fn not_found() -> Error {
        SearchEnvironment::now().nowhere()
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs the compiler to get its revision, and compares its release with that of the linked runtime.
    ///
    /// # Errors
    /// [`ErrorKind::Toolchain`] if it reports none, or is of another release, whose programs would not load.
    pub fn revision(&self, cancel: Option<&CancelToken>) -> Result<Revision> {
        let operation = "get the version of the IREE compiler";
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
            located(Error::new(ErrorKind::Toolchain, operation, "it does not report an IREE version"))
                .with_source(output)
        })?;
        self.expect_release(&revision)?;
        Ok(revision)
    }

    /// Rejects a compiler of another release than the runtime.
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

    /// Compiles MLIR text into the file format of the runtime.
    ///
    /// The child process works in a private temporary folder. `cancel` kills it.
    ///
    /// # Errors
    /// [`ErrorKind::Compile`] with the first diagnostic, if the compiler rejects the program or crashes;
    /// [`ErrorKind::ResourceExhausted`] if it runs out of disk space or memory; [`ErrorKind::Cancelled`].
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
        // A program is verified as it is read. To verify it again after each of the compiler's passes, and
        // for each name that an analysis gives a value, takes half of the time and changes no byte. Passes for
        // GPUs are still young enough to make what only the verifier refuses.
        if options.target.target().backend() == CPU_BACKEND {
            command.args(["--verify=false", "--mlir-print-assume-verified"]);
        }
        // Relative names keep the private folder out of diagnostics and, as debug information, out of the
        // artifact.
        command.args(["program.mlir", "-o", "program.vmfb"]).current_dir(folder.path());
        let located = |error: Error| error.with_context("compiler", self.path.display());
        let finished = process::run(&mut command, cancel, None).map_err(|failure| {
            located(failure.into_error(operation, ErrorKind::Toolchain, "the compiler could not be started"))
        })?;
        if !finished.status.success() {
            // An application that is being interrupted has its compiler interrupted too.
            cancel.map(Control::cancelled_by).unwrap_or_default().check(operation)?;
            let (kind, message, words) = diagnostics::describe(&finished);
            return Err(located(Error::new(kind, operation, message)).with_source(words));
        }
        match read_regular(&output, LONGEST_PROGRAM) {
            Ok(bytes) if !bytes.is_empty() => Ok(bytes),
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io(operation, &output, source))
            }
            _ => {
                let message = "the compiler reported success and wrote nothing";
                Err(located(Error::new(ErrorKind::Compile, operation, message)))
            }
        }
    }
}
