//! `rig-mlxcel`, which is outside the workspace: rig asks for a newer Rust than the workspace promises.

use anyhow::{Context, Result};
use cargo_metadata::MetadataCommand;

use super::Done;
use super::compile::Counts;
use crate::workspace::{Workspace, cargo_program};
use crate::{process, toolchains};

/// The crate's folder.
pub(super) const PACKAGE: &str = "rig-mlxcel";

pub(super) fn check(workspace: &Workspace) -> Result<Done> {
    let manifest = workspace.root().join(PACKAGE).join("Cargo.toml");
    let metadata =
        MetadataCommand::new().cargo_path(cargo_program()).manifest_path(&manifest).no_deps().exec();
    let metadata = metadata.with_context(|| format!("reading {}", manifest.display()))?;
    let version = metadata.packages.iter().find_map(|package| package.rust_version.clone());
    let version = version.with_context(|| format!("{} states no rust-version", manifest.display()))?;
    let Some(toolchain) = toolchains::release(&version)? else {
        return Ok(Done::Unchecked(format!(
            "Rust {version} is not installed (`rustup toolchain install {version} --profile minimal`)"
        )));
    };
    let mut counts = Counts::default();
    let mut test = toolchains::cargo(&toolchain);
    test.args(["test", "--locked", "--manifest-path"]).arg(&manifest).current_dir(workspace.root());
    test.env("CARGO_TARGET_DIR", workspace.metadata()?.target_directory.join("rig"));
    process::run_watched(&mut test, |line| counts.add(line)).with_context(|| counts.to_string())?;
    Ok(Done::Checked(format!("{counts}, by Rust {version}")))
}
