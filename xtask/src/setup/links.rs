//! The compilers that builds take, and stable names for what the packages keep elsewhere.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process;

/// Links in `.toolchain/` and what they point to, relative to the link's folder.
const LINKS: &[(&str, &str)] =
    &[("bin/iree-compile", "../python/iree/compiler/_mlir_libs/iree-compile"), ("mlx", "python/mlx")];

/// The compiler that cargo's build scripts will take, proved to run.
pub(super) fn compiler(variable: &str, default: &str) -> Result<String> {
    let name = std::env::var(variable).unwrap_or_else(|_| default.to_owned());
    process::output(Command::new(&name).arg("--version")).with_context(|| {
        format!(
            "no C and C++ compiler: `{name}` does not run; install one (Debian, Ubuntu: `apt install g++`; \
             Fedora: `dnf install gcc-c++`; macOS: `xcode-select --install`), or name yours in {variable}"
        )
    })?;
    Ok(name)
}

/// Makes every link point where it should.
pub(super) fn refresh(toolchain: &Path) -> Result<()> {
    for (name, target) in LINKS {
        link(&toolchain.join(name), Path::new(target))?;
    }
    Ok(())
}

/// Makes `at` a link to `target`, which is there, relative to the link's folder.
pub(super) fn link(at: &Path, target: &Path) -> Result<()> {
    if fs::read_link(at).is_ok_and(|found| found == target) && at.exists() {
        return Ok(());
    }
    let folder = at.parent().with_context(|| format!("{} has no parent", at.display()))?;
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    match fs::remove_file(at) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("replacing {}", at.display()));
        }
        _ => {}
    }
    symlink(target, at).with_context(|| format!("linking {} to {}", at.display(), target.display()))?;
    if !at.exists() {
        bail!(
            "{} is missing; delete .toolchain and run `cargo xtask setup` again",
            folder.join(target).display()
        );
    }
    Ok(())
}

/// Makes `at` a link to `target`.
#[cfg(unix)]
pub(crate) fn symlink(target: &Path, at: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, at)
}

/// Says that it is not for this platform.
#[cfg(not(unix))]
pub(crate) fn symlink(_target: &Path, _at: &Path) -> std::io::Result<()> {
    Err(std::io::Error::new(
        ErrorKind::Unsupported,
        "setup works on Linux and macOS only; run `cargo xtask setup --sources`, install iree-base-compiler==3.13.0 \
         yourself and name its iree-compile in MLXCEL_IREE_COMPILER",
    ))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn links_are_created_kept_and_corrected() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("old"), "").unwrap();
        fs::write(folder.path().join("new"), "").unwrap();
        let at = folder.path().join("bin/tool");
        for target in ["../old", "../old", "../new"] {
            link(&at, Path::new(target)).unwrap();
            assert_eq!(fs::read_link(&at).unwrap(), Path::new(target));
        }
    }

    #[test]
    fn a_missing_link_target_says_how_to_fix_it() {
        let folder = tempfile::tempdir().unwrap();
        let error = link(&folder.path().join("tool"), Path::new("nowhere")).unwrap_err();
        assert!(error.to_string().contains("cargo xtask setup"), "{error}");
    }
}
