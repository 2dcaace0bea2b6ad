//! Other engines in the same program: `tests-external/beside-llama-cpp` links the crate `llama-cpp-2`,
//! `tests-external/beside-eerie` the crate `eerie-sys`, which builds all of IREE's runtime under IREE's own
//! names. Both run their engine and ours.
//!
//! Their builds take CMake, ninja and libclang, which ours does not; they come from PyPI. What a linker sees
//! of our own archive, `mlxcel-iree-sys/tests/names.rs` checks. Building llama.cpp takes minutes, so this
//! check is made where it is asked for by name.

use anyhow::{Context, Result};

use super::external::{External, MODEL, exports_nothing};
use crate::workspace::Workspace;
use crate::{process, setup};

/// The folders below `tests-external/`, with what their programs run, relative to the repository.
pub(super) const PACKAGES: [(&str, &str); 2] =
    [("beside-llama-cpp", "tests-external/beside-llama-cpp/model.gguf"), ("beside-eerie", MODEL)];

/// What the engine compiles with at run time; its build needs only a C compiler.
const COMPILER: &str = "MLXCEL_IREE_COMPILER";

pub(super) fn check(workspace: &Workspace) -> Result<String> {
    let tools = setup::build_tools(workspace)?;
    let outside = tempfile::tempdir().context("making a folder outside the repository")?;
    let target = workspace.metadata()?.target_directory.into_std_path_buf();
    for (name, model) in PACKAGES {
        let mut run = External::prepare(workspace, name, outside.path(), &target)?.cargo("run");
        run.arg("--").arg(workspace.root().join(model)).envs(tools.iter().map(|(name, value)| (name, value)));
        if std::env::var_os(COMPILER).is_none() {
            run.env(COMPILER, workspace.toolchain().join("bin/iree-compile"));
        }
        // The program fails by itself if no text comes, and a choice of engine for the tests is none for it.
        process::run(run.env_remove("MLXCEL_BACKEND"))
            .with_context(|| format!("the external package {name}"))?;
        exports_nothing(&target.join("debug").join(name))?;
    }
    Ok("llama.cpp and another IREE run in one program with ours".to_owned())
}
