//! Another IREE in the same program: `tests-external/beside-eerie` links the crate `eerie-sys`, which builds all of IREE's runtime under
//! IREE's own names, and runs both.
//!
//! That crate takes CMake, ninja and libclang, which nothing of ours does; where they are not, there is nothing to run.

use std::process::Command;

use anyhow::{Context, Result};

use super::Done;
use super::external::External;
use crate::process;
use crate::workspace::Workspace;

/// The folder below `tests-external/`.
pub(super) const PACKAGE: &str = "beside-eerie";

pub(super) fn check(workspace: &Workspace) -> Result<Done> {
    let cmake = std::env::var_os("CMAKE").unwrap_or_else(|| "cmake".into());
    let has_cmake = process::output(Command::new(cmake).arg("--version")).is_ok();
    if !has_cmake || std::env::var_os("LIBCLANG_PATH").is_none() {
        return Ok(Done::Unchecked(
            "eerie-sys takes CMake (on PATH or in CMAKE), ninja and libclang (in LIBCLANG_PATH)".to_owned(),
        ));
    }
    let outside = tempfile::tempdir().context("making a folder outside the repository")?;
    let target = workspace.metadata()?.target_directory.into_std_path_buf();
    External::prepare(workspace, PACKAGE, outside.path(), &target)?.tells_a_story_through_iree(workspace)?;
    Ok(Done::Checked("two IREEs in one program run".to_owned()))
}
