//! The minimum supported Rust version: no dependency asks for more, and that toolchain compiles us.
//! Continuous integration asks rustup for it; elsewhere it is used where it is installed. (Which parts of the
//! standard library are newer, clippy's `incompatible_msrv` knows too.)

use anyhow::{Context, Result, bail};

use super::Done;
use crate::workspace::Workspace;
use crate::{process, toolchains};

pub(super) fn check(workspace: &Workspace) -> Result<Done> {
    let metadata = workspace.metadata()?;
    let packages = metadata.workspace_packages();
    let promised = packages.iter().filter_map(|package| package.rust_version.clone()).min();
    let promised = promised.context("the workspace states no rust-version")?;
    let mut demanding = 0;
    for package in &metadata.packages {
        match &package.rust_version {
            Some(version) if *version > promised => {
                eprintln!("{} {} needs Rust {version}", package.name, package.version);
                demanding += 1;
            }
            None if metadata.workspace_members.contains(&package.id) => {
                eprintln!("{} states no rust-version", package.name);
                demanding += 1;
            }
            _ => {}
        }
    }
    if demanding > 0 {
        bail!("{demanding} packages need a newer Rust than {promised}");
    }
    let packages = metadata.packages.len();
    let Some(toolchain) = toolchains::release(&promised)? else {
        return Ok(Done::Unchecked(format!(
            "Rust {promised} is not installed (`rustup toolchain install {promised}`), so nothing was compiled with it; all {packages} packages declare it or an older version"
        )));
    };
    let mut command = toolchains::cargo(&toolchain);
    command.args(["check", "--locked", "--workspace", "--features"]).arg(workspace.features()?);
    process::run(command.current_dir(workspace.root()))?;
    Ok(Done::Checked(format!(
        "Rust {promised} compiles the workspace, and all {packages} packages declare it or an older version"
    )))
}
