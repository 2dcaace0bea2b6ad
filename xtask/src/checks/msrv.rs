//! The minimum supported Rust version: no dependency asks for more, and that toolchain compiles us. Continuous integration asks
//! rustup for it; elsewhere it is used where it is installed. (Which parts of the standard library are newer, clippy's
//! `incompatible_msrv` knows too.)

use std::process::Command;

use anyhow::{Context, Result, bail};
use cargo_metadata::semver::Version;

use super::Done;
use super::missing::fetched_by_rustup;
use crate::workspace::Workspace;
use crate::{process, toolchains};

pub(super) fn check(workspace: &Workspace) -> Result<Done> {
    let metadata = workspace.metadata()?;
    let promised = metadata
        .workspace_packages()
        .iter()
        .filter_map(|package| package.rust_version.clone())
        .min()
        .context("the workspace states no rust-version")?;
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
    if !is_installed(&promised) && !install(&promised)? {
        return Ok(Done::Unchecked(format!(
            "Rust {promised} is not installed (`rustup toolchain install {promised}`), so nothing was compiled with it; all {packages} packages declare it or an older version"
        )));
    }
    compile_with(workspace, &promised)?;
    Ok(Done::Checked(format!(
        "Rust {promised} compiles the workspace, and all {packages} packages declare it or an older version"
    )))
}

/// In continuous integration, has rustup install the toolchain; whether it is there.
fn install(version: &Version) -> Result<bool> {
    let name = toolchain_name(version);
    fetched_by_rustup(&["toolchain", "install", &name, "--profile", "minimal", "--no-self-update"])
}

fn toolchain_name(version: &Version) -> String {
    format!("{}.{}", version.major, version.minor)
}

/// Whether rustup has the toolchain; asked by listing, since naming a missing one may download it.
fn is_installed(version: &Version) -> bool {
    let name = toolchain_name(version);
    process::output(Command::new("rustup").args(["toolchain", "list"]))
        .is_ok_and(|list| list.lines().any(|line| is_release(line, &name)))
}

/// Whether a line such as `1.88.0-x86_64-unknown-linux-gnu (default)` names a toolchain of release `1.88`.
fn is_release(line: &str, name: &str) -> bool {
    line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['.', '-']))
}

fn compile_with(workspace: &Workspace, version: &Version) -> Result<()> {
    let list = process::output(Command::new("rustup").args(["toolchain", "list"]))?;
    let name = toolchain_name(version);
    let toolchain = list
        .lines()
        .find(|line| is_release(line, &name))
        .and_then(|line| line.split_whitespace().next())
        .with_context(|| format!("rustup does not list Rust {version}"))?;
    let mut command = toolchains::cargo(toolchain);
    command.args(["check", "--locked", "--workspace", "--features"]).arg(workspace.features()?);
    process::run(command.current_dir(workspace.root()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toolchains_are_recognised_by_release() {
        assert!(is_release("1.88-x86_64-unknown-linux-gnu", "1.88"));
        assert!(is_release("1.88.0-aarch64-apple-darwin (active, default)", "1.88"));
        assert!(!is_release("1.880-x86_64-unknown-linux-gnu", "1.88"));
        assert!(!is_release("stable-x86_64-unknown-linux-gnu", "1.88"));
    }
}
