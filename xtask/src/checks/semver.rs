//! Semantic versioning: cargo-semver-checks against the last release, if there is one.

use std::process::Command;

use anyhow::Result;

use super::Done;
use super::missing::left_out;
use super::packages::{has_library, is_published};
use crate::process;
use crate::workspace::Workspace;

pub(super) fn check(workspace: &Workspace) -> Result<Done> {
    // Without git, as in an unpacked archive, no release is known either.
    let mut git = Command::new("git");
    git.args(["tag", "--list", "v[0-9]*", "--sort=-version:refname"]).current_dir(workspace.root());
    // The tag that is being released stands at this commit, and would be compared with itself.
    git.args(["--no-contains", "HEAD"]);
    let tags = process::output(&mut git).unwrap_or_default();
    let Some(release) = tags.lines().next() else {
        return Ok(Done::Unchecked(
            "no earlier release is tagged, so there is nothing to compare with".to_owned(),
        ));
    };
    if process::output(&mut workspace.cargo(&["semver-checks", "--version"])).is_err() {
        return left_out(format!(
            "{release} is released, and cargo-semver-checks is not installed to compare with it: \
             cargo install --locked cargo-semver-checks"
        ));
    }
    let metadata = workspace.metadata()?;
    let published = metadata.workspace_packages().into_iter().filter(|package| is_published(package));
    let mut command = workspace.cargo(&["semver-checks", "--baseline-rev", release]);
    for package in published.filter(|package| has_library(package)) {
        command.args(["--package", &package.name]);
    }
    // Build scripts look for nothing: the release's working tree has neither IREE's sources nor MLX.
    process::run(command.env("DOCS_RS", "1"))?;
    Ok(Done::Checked(format!("compared with {release}")))
}
