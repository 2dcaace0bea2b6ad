//! Every crate as it would be published, and a third-party engine, in `tests-external/my-backend`, built and proved on
//! two of the packages.
//!
//! `cargo package` makes them, so a file that is missing from a package, or something that only the workspace gives, is seen
//! here and not by the first author of an engine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::compile::Counts;
use super::packages::SharedPackages;
use crate::process;
use crate::workspace::{Workspace, cargo_program};

/// The folder below `tests-external/`.
pub(super) const PACKAGE: &str = "my-backend";

/// What an engine's author depends on.
const PUBLISHED: [&str; 2] = ["mlxcel-core", "mlxcel-conformance"];

pub(super) fn check(workspace: &Workspace, packages: &SharedPackages) -> Result<String> {
    let packages = packages.get(workspace)?;
    let mut used = Vec::new();
    for name in PUBLISHED {
        used.push((name, packages.get(name)?.folder.clone()));
    }
    let target = workspace.metadata()?.target_directory.into_std_path_buf();
    let counts = prove(workspace, &target, &used)?;
    let (number, largest) = (packages.unpacked.len(), packages.largest as f64 / 1e6);
    Ok(format!(
        "{number} packages of at most {largest:.1} MB; {PACKAGE} with {}: {counts}",
        PUBLISHED.join(" and ")
    ))
}

/// Runs the engine's own tests, with the packages in place of those that crates.io has.
fn prove(workspace: &Workspace, target: &Path, packages: &[(&str, PathBuf)]) -> Result<Counts> {
    let project = workspace.root().join("tests-external").join(PACKAGE);
    // The versions that the workspace is tested with; cargo drops what is not needed.
    fs::copy(workspace.root().join("Cargo.lock"), project.join("Cargo.lock"))
        .with_context(|| format!("giving {PACKAGE} the lock file of the workspace"))?;
    let outside = tempfile::tempdir().context("making a folder outside the repository")?;
    let mut command = Command::new(cargo_program());
    command.arg("test").arg("--manifest-path").arg(project.join("Cargo.toml"));
    for (name, path) in packages {
        let path = path.to_str().context("the target folder has no UTF-8 path")?;
        // A TOML string takes most of what a path may hold in single quotes.
        command.arg("--config").arg(format!("patch.crates-io.{name}.path='{path}'"));
    }
    command.current_dir(outside.path()).env("CARGO_TARGET_DIR", target);
    let mut counts = Counts::default();
    process::run_watched(&mut command, |line| counts.add(line)).with_context(|| counts.to_string())?;
    if counts.passed == 0 {
        bail!("no test ran");
    }
    Ok(counts)
}
