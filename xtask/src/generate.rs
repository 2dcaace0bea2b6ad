//! `generate`: regenerates the bindings and headers in `mlxcel-iree-sys`, and the pictures of the
//! documentation.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process;
use crate::setup::{self, Packages, find_python};
use crate::workspace::Workspace;

/// The crate, and its program.
const CRATE: &str = "mlxcel-iree-sys";
const GENERATOR: &str = "mlxcel-iree-generate";
/// What it writes, relative to the crate.
const WRITTEN: [&str; 2] = ["generated", "src/bindings.rs"];

/// The script that writes the pictures of the documentation.
const PICTURES: &str = "docs/pictures/draw.py";

/// Writes bindings and headers into the crate, and the pictures.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    draw(workspace, &[])?;
    setup::unpack_sources(workspace)?;
    generate(workspace, &workspace.root().join(CRATE))
}

/// Fails where a run would change something.
pub(crate) fn check(workspace: &Workspace) -> Result<String> {
    draw(workspace, &["--check"])?;
    let fresh = tempfile::tempdir().context("making a folder")?;
    generate(workspace, fresh.path())?;
    let mut files = 0;
    for path in WRITTEN {
        files += compare(&workspace.root().join(CRATE), fresh.path(), Path::new(path))?;
    }
    Ok(format!("{files} files are up to date"))
}

/// A command that runs the generator, compiled with the features of the whole workspace: tests need the same
/// crates.
pub(crate) fn generator(workspace: &Workspace, arguments: &[&OsStr]) -> Result<Command> {
    let features = workspace.features()?;
    let build = ["build", "--locked", "--quiet", "--workspace", "--features", &features, "--bin", GENERATOR];
    process::run(&mut workspace.cargo(&build))?;
    let mut command = workspace.built(GENERATOR)?;
    command.args(arguments);
    Ok(command)
}

fn generate(workspace: &Workspace, out: &Path) -> Result<()> {
    let libclang = Packages::new("libclang", "xtask/toolchain/libclang.txt", "libclang (about 25 MB)")
        .for_any_python()
        .install(workspace)?;
    let upstream = setup::iree_upstream(workspace)?;
    let mut command = generator(workspace, &["bindings".as_ref(), upstream.as_os_str(), out.as_os_str()])?;
    command.envs(setup::libclang_variables(&libclang)?);
    process::run(&mut command)
}

/// Runs the script of the pictures, which needs Python 3.11 and none of its packages.
fn draw(workspace: &Workspace, arguments: &[&str]) -> Result<()> {
    let script = workspace.root().join(PICTURES);
    process::run(Command::new(find_python()?).arg(script).args(arguments))
}

/// Compares a file, or all of a folder; the number of files.
fn compare(kept: &Path, fresh: &Path, path: &Path) -> Result<usize> {
    let (kept_at, fresh_at) = (kept.join(path), fresh.join(path));
    if !fresh_at.is_dir() {
        let read = |file: &Path| fs::read(file).with_context(|| format!("reading {}", file.display()));
        if read(&kept_at)? != read(&fresh_at)? {
            bail!("{} is outdated: run `cargo xtask generate`", kept_at.display());
        }
        return Ok(1);
    }
    let names = |folder: &Path| -> Result<Vec<_>> {
        let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
        let mut names = entries.map(|entry| Ok(entry?.file_name())).collect::<Result<Vec<_>>>()?;
        names.sort();
        Ok(names)
    };
    let fresh_names = names(&fresh_at)?;
    if names(&kept_at)? != fresh_names {
        bail!("{} has files that are not generated: run `cargo xtask generate`", kept_at.display());
    }
    fresh_names.into_iter().map(|name| compare(kept, fresh, &path.join(name))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_and_extra_files_are_found() {
        let [kept, fresh] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        for folder in [&kept, &fresh] {
            fs::create_dir_all(folder.path().join("generated/include")).unwrap();
            fs::write(folder.path().join("generated/include/a.h"), "int a;").unwrap();
        }
        let compare = || compare(kept.path(), fresh.path(), Path::new("generated"));
        assert_eq!(compare().unwrap(), 1);
        fs::write(kept.path().join("generated/include/a.h"), "int b;").unwrap();
        assert!(compare().unwrap_err().to_string().contains("cargo xtask generate"));
        fs::write(kept.path().join("generated/include/a.h"), "int a;").unwrap();
        fs::write(kept.path().join("generated/include/b.h"), "").unwrap();
        assert!(compare().is_err());
    }
}
