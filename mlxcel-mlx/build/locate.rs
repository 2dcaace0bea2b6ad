//! Where MLX is, and whether it is the release that the bridge is written for.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names a folder with MLX's `include/` and `lib/`.
pub(crate) const VARIABLE: &str = "MLXCEL_MLX_DIR";

/// The release whose headers and library fit together with this crate.
pub(crate) const RELEASE: &str = "0.32.4";

/// An installation of MLX of the right release.
#[derive(Debug)]
pub(crate) struct Mlx {
    include: PathBuf,
    library: PathBuf,
}

impl Mlx {
    /// The installation in the folder `named`, or else in one of the folders that `packages` gives: those of
    /// the active Python's package. The error says what is missing and how to get it.
    pub(crate) fn find(
        named: Option<OsString>,
        packages: impl FnOnce() -> Vec<PathBuf>,
    ) -> Result<Self, String> {
        if let Some(folder) = named.filter(|folder| !folder.is_empty()) {
            return Self::open(Path::new(&folder)).map_err(|problem| {
                format!("{VARIABLE} names {}, {problem}.\n{}", folder.display(), advice())
            });
        }
        let mut problems = String::new();
        for folder in packages() {
            match Self::open(&folder) {
                Ok(mlx) => return Ok(mlx),
                Err(problem) => {
                    problems.push_str(&format!("Python has MLX in {}, {problem}.\n", folder.display()));
                }
            }
        }
        if problems.is_empty() {
            problems.push_str("MLX is not installed, or not for the Python on PATH.\n");
        }
        Err(problems + &advice())
    }

    /// The installation with this prefix, or what is wrong with it.
    fn open(prefix: &Path) -> Result<Self, String> {
        let include = prefix.join("include");
        let header = version_header(&include);
        let text = fs::read_to_string(&header)
            .map_err(|error| format!("where {} cannot be read ({error})", header.display()))?;
        let found = release(&text).ok_or_else(|| format!("where {} states no release", header.display()))?;
        if found != RELEASE {
            return Err(format!("which is release {found}, and {RELEASE} is needed"));
        }
        let libraries = ["libmlx.so", "libmlx.dylib"].map(|name| prefix.join("lib").join(name));
        let library = libraries
            .iter()
            .find(|library| library.is_file())
            .ok_or_else(|| format!("where {} is missing", libraries[0].display()))?;
        let resolved = |path: &Path| {
            path.canonicalize()
                .map_err(|error| format!("where {} cannot be resolved ({error})", path.display()))
        };
        Ok(Self { include: resolved(&include)?, library: resolved(library)? })
    }

    /// The folder of the headers.
    pub(crate) fn include(&self) -> &Path {
        &self.include
    }

    /// The shared library, by an absolute path without links.
    pub(crate) fn library(&self) -> &Path {
        &self.library
    }

    /// The header that states the release.
    pub(crate) fn version_header(&self) -> PathBuf {
        version_header(&self.include)
    }
}

fn version_header(include: &Path) -> PathBuf {
    include.join("mlx/version.h")
}

/// What to do about it.
fn advice() -> String {
    format!(
        "Install MLX {RELEASE}, as\n    \
         pip install \"mlx[cpu]=={RELEASE}\"       (Linux with glibc 2.35 or newer)\n    \
         pip install \"mlx[cuda12]=={RELEASE}\"    (Linux with an NVIDIA GPU)\n    \
         pip install \"mlx=={RELEASE}\"            (macOS 14 or newer on Apple silicon)\n\
         for the Python that `python3` on PATH starts, or name a folder with its `include/` and `lib/` in {VARIABLE}. In a \
         checkout of mlxcel: `cargo xtask setup`."
    )
}

/// The release that `version.h` states, as `major.minor.patch`.
fn release(header: &str) -> Option<String> {
    let number = |name: &str| {
        header.lines().find_map(|line| {
            let mut words = line.split_whitespace();
            (words.next() == Some("#define") && words.next() == Some(name)).then(|| words.next())?
        })
    };
    let parts = ["MLX_VERSION_MAJOR", "MLX_VERSION_MINOR", "MLX_VERSION_PATCH"].map(number);
    Some(format!("{}.{}.{}", parts[0]?, parts[1]?, parts[2]?))
}

/// The folders of the package `mlx` of the first Python on PATH that has it. They are looked up without
/// importing it.
pub(crate) fn python_packages() -> Vec<PathBuf> {
    // The package may be spread over several folders: `mlx` has the Python code and `mlx-cpu` the library.
    const PROGRAM: &str = "import importlib.util\n\
        spec = importlib.util.find_spec('mlx')\n\
        print('\\n'.join(spec.submodule_search_locations or []) if spec else '')";
    for python in ["python3", "python"] {
        let mut command = Command::new(python);
        command.args(["-c", PROGRAM]);
        // With `-c` the working directory is a place of packages: let it be one in which only this script
        // puts things.
        if let Some(folder) = env::var_os("OUT_DIR") {
            command.current_dir(folder);
        }
        let Ok(output) = command.output() else { continue };
        let said = String::from_utf8_lossy(&output.stdout);
        let folders: Vec<_> = said.lines().filter(|line| !line.is_empty()).map(PathBuf::from).collect();
        if output.status.success() && !folders.is_empty() {
            return folders;
        }
    }
    Vec::new()
}
