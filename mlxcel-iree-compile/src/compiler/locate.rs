//! Locates the compiler.

use std::env;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_iree_target::process::{is_executable, on_path, search_path};

/// The variable that names the compiler.
pub(super) const COMPILER_VARIABLE: &str = "MLXCEL_IREE_COMPILER";
/// The variable that names the folder of an IREE distribution.
const DIST_VARIABLE: &str = "IREE_DIST";

const OPERATION: &str = "find the IREE compiler";

const EXECUTABLE: &str = if cfg!(windows) { "iree-compile.exe" } else { "iree-compile" };
const PYTHON: &str = if cfg!(windows) { "python.exe" } else { "python3" };
/// Where the package of the compiler has it.
const PACKAGE: &str = "iree/compiler/_mlir_libs";
/// The line that installs the compiler of the runtime's release.
const INSTALL: &str = "pip install iree-base-compiler==3.13.0";
const SCRIPTS: &str = if cfg!(windows) { "Scripts" } else { "bin" };

/// What the search reads of the environment; a value, so that it can be tested.
///
/// The search starts no program: it reads folders. Nothing depends on the working directory, which may be
/// untrusted: relative paths are skipped, except in what the user named.
#[derive(Default)]
pub(super) struct SearchEnvironment {
    /// `MLXCEL_IREE_COMPILER`.
    pub(super) compiler: Option<PathBuf>,
    /// `IREE_DIST`.
    pub(super) dist: Option<PathBuf>,
    /// The absolute folders of `PATH`.
    pub(super) path: Vec<PathBuf>,
    /// The active Python environments.
    pub(super) environments: Vec<PathBuf>,
    /// The Python on `PATH`.
    pub(super) python: Option<PathBuf>,
    /// Where `pip install --user` puts packages.
    pub(super) user_base: Option<PathBuf>,
}

impl SearchEnvironment {
    /// The environment of this process, now.
    pub(super) fn now() -> Self {
        let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(set);
        let user_base = set("PYTHONUSERBASE").or_else(|| Some(set("HOME")?.join(".local")));
        Self {
            compiler: set(COMPILER_VARIABLE),
            dist: set(DIST_VARIABLE),
            path: search_path(),
            environments: environments.filter(|prefix| prefix.is_absolute()).collect(),
            python: on_path(PYTHON),
            user_base: user_base.filter(|base| base.is_absolute()),
        }
    }

    /// The compiler that `explicit` or the environment names, or the first that is found, if any is.
    pub(super) fn find(&self, explicit: Option<&Path>) -> Result<Option<PathBuf>> {
        if let Some(path) = explicit {
            return named(path, "the compiler in the options").map(Some);
        }
        if let Some(path) = &self.compiler {
            return named(path, "the compiler in MLXCEL_IREE_COMPILER").map(Some);
        }
        if let Some(folder) = &self.dist {
            return named(&folder.join("bin").join(EXECUTABLE), "the compiler in IREE_DIST").map(Some);
        }
        let scripts = self.environments.iter().map(|prefix| prefix.join(SCRIPTS));
        let mut candidates = self.path.iter().cloned().chain(scripts).map(|folder| folder.join(EXECUTABLE));
        if let Some(found) = candidates.find(|candidate| is_executable(candidate)) {
            return Ok(Some(behind_script(found)));
        }
        Ok(self.prefixes().iter().find_map(|prefix| in_packages_of(prefix)))
    }

    /// The folders that Python packages are installed below.
    fn prefixes(&self) -> Vec<PathBuf> {
        let of = |python: &Path| python.parent().and_then(Path::parent).map(Path::to_owned);
        let mut prefixes = self.environments.clone();
        if let Some(python) = &self.python {
            // The prefix of a virtual environment, whose python3 is a link, before that of the installation.
            prefixes.extend(of(python));
            prefixes.extend(python.canonicalize().ok().as_deref().and_then(of));
        }
        // Debian's Python, in /usr, installs packages there.
        if prefixes.iter().any(|prefix| prefix == Path::new("/usr")) {
            prefixes.push("/usr/local".into());
        }
        prefixes.extend(self.user_base.clone());
        prefixes.dedup();
        prefixes
    }

    /// The error of a search that found nothing.
    pub(super) fn nowhere(&self) -> Error {
        let mut looked: Vec<String> = vec![
            "the options (no path given)".to_owned(),
            format!("{COMPILER_VARIABLE} (not set)"),
            format!("{DIST_VARIABLE} (not set)"),
        ];
        looked.push(format!("PATH ({} folders)", self.path.len()));
        looked.extend(
            self.prefixes().iter().map(|prefix| format!("Python packages below {}", prefix.display())),
        );
        Error::new(
            ErrorKind::Toolchain,
            OPERATION,
            format!("no compiler was found; install it with `{INSTALL}`, or set {COMPILER_VARIABLE}"),
        )
        .with_context("looked in", looked.join(", "))
    }
}

/// The compiler in the Python packages below `prefix`, those of the newest Python first.
fn in_packages_of(prefix: &Path) -> Option<PathBuf> {
    let mut libraries = Vec::new();
    for library in ["lib", "lib64"].map(|name| prefix.join(name)) {
        // macOS and Windows have other places for `pip install --user`; a compiler there is found on PATH or
        // named.
        if cfg!(windows) {
            libraries.push((u32::MAX, library));
            continue;
        }
        for entry in library.read_dir().into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(version) = name.to_str().and_then(|name| name.strip_prefix("python3")) else { continue };
            let minor = version.strip_prefix('.').and_then(|minor| minor.parse().ok()).unwrap_or(0);
            libraries.push((minor, entry.path()));
        }
    }
    libraries.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    let packages = libraries.iter().flat_map(|(_, library)| {
        ["site-packages", "dist-packages"].map(|name| library.join(name).join(PACKAGE).join(EXECUTABLE))
    });
    packages.into_iter().find(|candidate| is_executable(candidate))
}

/// A compiler that the user named: it has to exist.
fn named(path: &Path, what: &str) -> Result<PathBuf> {
    if is_executable(path) {
        return Ok(std::path::absolute(path).unwrap_or_else(|_| path.to_owned()));
    }
    let problem = if path.is_file() { "cannot be executed" } else { "does not exist" };
    let message = format!(
        "{what} {problem}; install one with `{INSTALL}` (in mlxcel's own repository: `cargo xtask setup`), or name \
         another"
    );
    Err(Error::new(ErrorKind::Toolchain, OPERATION, message).with_context("path", path.display()))
}

/// The program behind pip's script, where it is found: starting Python first takes longer than the compiler
/// does.
fn behind_script(script: PathBuf) -> PathBuf {
    let mut start = [0; 2];
    let is_script =
        File::open(&script).and_then(|mut file| file.read_exact(&mut start)).is_ok() && start == *b"#!";
    if !is_script {
        return script;
    }
    script.parent().and_then(Path::parent).and_then(in_packages_of).unwrap_or(script)
}
