//! Where the compiler is looked for.

use std::env;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_iree_target::RELEASE;
use mlxcel_iree_target::process::{self, is_executable, on_path, search_path};

/// The variable that names the compiler.
pub(super) const COMPILER_VARIABLE: &str = "MLXCEL_IREE_COMPILER";
/// The variable that names the folder of an IREE distribution.
const DIST_VARIABLE: &str = "IREE_DIST";

const OPERATION: &str = "find the IREE compiler";

const EXECUTABLE: &str = if cfg!(windows) { "iree-compile.exe" } else { "iree-compile" };
const PYTHON: &str = if cfg!(windows) { "python.exe" } else { "python3" };
const SCRIPTS: &str = if cfg!(windows) { "Scripts" } else { "bin" };

/// What the search reads of the environment; a value, so that it can be tested.
///
/// Nothing here depends on the working directory, which may be a stranger's: what is not absolute is left out, except for what somebody
/// named.
pub(super) struct Surroundings {
    pub(super) compiler: Option<PathBuf>,
    pub(super) dist: Option<PathBuf>,
    pub(super) path: Vec<PathBuf>,
    pub(super) environments: Vec<PathBuf>,
    pub(super) python: Option<PathBuf>,
}

impl Surroundings {
    /// The environment of this process, now.
    pub(super) fn now() -> Self {
        let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(set);
        Self {
            compiler: set(COMPILER_VARIABLE),
            dist: set(DIST_VARIABLE),
            path: search_path(),
            environments: environments.filter(|prefix| prefix.is_absolute()).collect(),
            python: on_path(PYTHON),
        }
    }

    /// The compiler that `explicit` or the environment names, or the first that is found, if any is; no program is started for it.
    pub(super) fn find(&self, explicit: Option<&Path>) -> Result<Option<PathBuf>> {
        if let Some(path) = explicit {
            return named(path, "the compiler that the options name").map(Some);
        }
        if let Some(path) = &self.compiler {
            return named(path, "the compiler that MLXCEL_IREE_COMPILER names").map(Some);
        }
        if let Some(folder) = &self.dist {
            return named(
                &folder.join("bin").join(EXECUTABLE),
                "the compiler of the folder that IREE_DIST names",
            )
            .map(Some);
        }
        let scripts = self.environments.iter().map(|prefix| prefix.join(SCRIPTS));
        let mut candidates = self.path.iter().cloned().chain(scripts).map(|folder| folder.join(EXECUTABLE));
        Ok(candidates.find(|candidate| is_executable(candidate)).map(behind_script))
    }

    /// The compiler in the packages of the Python that is on PATH, which is started in isolation: neither the working directory nor
    /// variables have a say in what it imports.
    pub(super) fn ask_python(&self) -> Option<PathBuf> {
        const SCRIPT: &str = "import importlib.util as u, site, sys; sys.path.append(site.getusersitepackages()); \
                              print(u.find_spec('iree.compiler').submodule_search_locations[0])";
        let mut command = Command::new(self.python.as_ref()?);
        command.args(["-I", "-c", SCRIPT]);
        let finished = process::run(&mut command, None, Some(Duration::from_secs(20))).ok()?;
        let package = Path::new(finished.stdout.trim());
        let compiler = package.join("_mlir_libs").join(EXECUTABLE);
        (finished.status.success() && package.is_absolute() && is_executable(&compiler)).then_some(compiler)
    }

    /// The error of a search that found nothing.
    pub(super) fn nowhere(&self) -> Error {
        let mut looked: Vec<String> = vec![
            "the options (no path given)".to_owned(),
            format!("{COMPILER_VARIABLE} (not set)"),
            format!("{DIST_VARIABLE} (not set)"),
        ];
        looked.push(format!("PATH ({} folders)", self.path.len()));
        looked.extend(self.environments.iter().map(|prefix| prefix.display().to_string()));
        looked.extend(self.python.iter().map(|python| format!("the packages of {}", python.display())));
        Error::new(
            ErrorKind::Toolchain,
            OPERATION,
            format!(
                "there is none; get it with `pip install iree-base-compiler=={}`, or name it in {COMPILER_VARIABLE}",
                RELEASE
            ),
        )
        .with_context("looked in", looked.join(", "))
    }
}

/// A compiler that somebody named: it has to be there.
fn named(path: &Path, what: &str) -> Result<PathBuf> {
    if is_executable(path) {
        return Ok(std::path::absolute(path).unwrap_or_else(|_| path.to_owned()));
    }
    let problem = if path.is_file() { "cannot be executed" } else { "does not exist" };
    let message = format!(
        "{what} {problem}; get one with `pip install iree-base-compiler=={}` (in mlxcel's own repository: \
         `cargo xtask setup`), or name another",
        RELEASE
    );
    Err(Error::new(ErrorKind::Toolchain, OPERATION, message).with_context("path", path.display()))
}

/// The program behind pip's script, where it is found: starting Python first takes longer than the compiler does.
fn behind_script(script: PathBuf) -> PathBuf {
    let mut start = [0; 2];
    let is_script =
        File::open(&script).and_then(|mut file| file.read_exact(&mut start)).is_ok() && start == *b"#!";
    if !is_script {
        return script;
    }
    let Some(library) = script.parent().and_then(Path::parent).map(|prefix| prefix.join("lib")) else {
        return script;
    };
    let Ok(entries) = library.read_dir() else { return script };
    entries
        .flatten()
        .filter(|entry| {
            entry.file_name().as_encoded_bytes().starts_with(OsStr::new("python3").as_encoded_bytes())
        })
        .map(|entry| entry.path().join("site-packages/iree/compiler/_mlir_libs").join(EXECUTABLE))
        .find(|candidate| is_executable(candidate))
        .unwrap_or(script)
}
