//! Other engines in the same program: `tests-external/beside-llama-cpp` links the crate `llama-cpp-2`,
//! `tests-external/beside-eerie` the crate `eerie-sys`, which builds all of IREE's runtime under IREE's own
//! names. Both run their engine and ours.
//!
//! Their builds take CMake, ninja and libclang, which ours does not; they come from PyPI. What a linker sees
//! of our own archive, `mlxcel-iree-sys/tests/names.rs` checks. Building llama.cpp takes minutes, so this
//! check is made where it is asked for by name.

use anyhow::{Context, Result};

use super::external::External;
use crate::setup;
use crate::workspace::Workspace;

/// The folders below `tests-external/`, with what their programs run, relative to the repository.
pub(super) const PACKAGES: [(&str, &str); 2] = [
    ("beside-llama-cpp", "tests-external/beside-llama-cpp/model.gguf"),
    ("beside-eerie", super::external::MODEL),
];

pub(super) fn check(workspace: &Workspace) -> Result<String> {
    let tools = setup::build_tools(workspace)?;
    let outside = tempfile::tempdir().context("making a folder outside the repository")?;
    let target = workspace.metadata()?.target_directory.into_std_path_buf();
    for (name, model) in PACKAGES {
        let package = External::prepare(workspace, name, outside.path(), &target)?
            .with_model(&workspace.root().join(model))
            .with_build_environment(&tools);
        package.runs_through_iree(workspace)?;
        package.exports_nothing()?;
    }
    Ok("llama.cpp and another IREE run in one program with ours".to_owned())
}
