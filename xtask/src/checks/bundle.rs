//! A bundle of plain StableHLO, run through XLA by a script, against the oracle.
//!
//! XLA comes with JAX from PyPI, about 150 MB, and is installed when this check first runs, not by `setup`:
//! nothing that is built here needs it.

use std::process::Command;

use anyhow::{Context, Result, bail};

use super::Done;
use super::missing::left_out;
use crate::process;
use crate::setup::{self, find_python};
use crate::workspace::Workspace;

/// The script and what it needs.
const SCRIPT: &str = "tests-external/xla/run_bundle.py";
/// The checkpoint, with an `oracle.json` beside it.
const MODEL: &str = "fixtures/architectures/llama";
/// The minor versions of Python 3, and the machines, that the pinned wheels are for.
const PYTHONS: std::ops::RangeInclusive<u32> = 11..=14;
const MACHINES: [(&str, &str); 3] = [("linux", "x86_64"), ("linux", "aarch64"), ("macos", "aarch64")];

pub(super) fn check(workspace: &Workspace) -> Result<Done> {
    let python = find_python()?;
    match without_wheels(&python)? {
        None => through_xla(workspace, &python).map(Done::Checked),
        Some(reason) => left_out(format!("not through XLA: {reason}")),
    }
}

fn through_xla(workspace: &Workspace, python: &str) -> Result<String> {
    let packages = setup::jax(workspace)?;

    let folder = tempfile::tempdir().context("making a folder for the bundle")?;
    let bundle = folder.path().join("bundle");
    let model = workspace.root().join(MODEL);
    let mut write = workspace.program("mlxcel", "programs")?;
    write.args(["bundle", "--target", "stablehlo", "--precision", "exact"]);
    process::run(write.arg("--model").arg(&model).arg("--out").arg(&bundle))?;

    let mut run = Command::new(python);
    run.arg(workspace.root().join(SCRIPT)).arg(&bundle).arg("--oracle").arg(model.join("oracle.json"));
    run.env("PYTHONPATH", packages).env("PYTHONNOUSERSITE", "1");
    // Another device that JAX might find is not what the oracle was computed for.
    let said = process::output(run.env("JAX_PLATFORMS", "cpu"))?;
    match said.trim() {
        "" => bail!("the script made no comparison"),
        said => Ok(said.to_owned()),
    }
}

/// Why the pinned wheels, those of JAX and of what else comes for Python, cannot be installed here, if they
/// cannot.
pub(super) fn without_wheels(python: &str) -> Result<Option<String>> {
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    if !MACHINES.contains(&(os, arch)) {
        return Ok(Some(format!("no wheel is pinned for {os} on {arch}")));
    }
    let said = process::output(Command::new(python).arg("--version"))?;
    let minor = minor_version(&said).with_context(|| format!("{python} says that it is {said:?}"))?;
    Ok((!PYTHONS.contains(&minor)).then(|| format!("no wheel is pinned for Python 3.{minor}")))
}

/// The minor version in what `python3 --version` says.
fn minor_version(said: &str) -> Option<u32> {
    said.trim().strip_prefix("Python 3.")?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_minor_version_is_read() {
        assert_eq!(minor_version("Python 3.11.7\n"), Some(11));
        assert_eq!(minor_version("Python 3.15.0rc1"), Some(15));
        assert_eq!(minor_version("Python 2.7.18"), None);
    }
}
