//! WebAssembly: `tests-external/hello-wasm`, the portable engine with a model in the module, built for
//! `wasm32-unknown-unknown` and run by Node.
//!
//! Continuous integration has rustup install the target's standard library. Elsewhere the installed one is
//! used, or one that a nightly toolchain builds from its sources (`rust-src`).

use std::process::Command;

use anyhow::{Context, Result};

use super::Done;
use super::external::External;
use super::missing::{fetched_by_rustup, has_target, left_out};
use crate::workspace::Workspace;
use crate::{process, toolchains};

/// The folder below `tests-external/`.
pub(super) const PACKAGE: &str = "hello-wasm";

const TARGET: &str = "wasm32-unknown-unknown";

pub(super) fn check(workspace: &Workspace) -> Result<Done> {
    let has_target = has_target(TARGET) || fetched_by_rustup(&["target", "add", TARGET])?;
    if !has_target && !toolchains::nightly_has_sources().unwrap_or(false) {
        return Ok(Done::Unchecked(format!("the target is not installed: rustup target add {TARGET}")));
    }
    if process::output(Command::new("node").arg("--version")).is_err() {
        return left_out("there is no Node to run a module".to_owned());
    }
    let outside = tempfile::tempdir().context("making a folder outside the repository")?;
    let target = workspace.metadata()?.target_directory.into_std_path_buf();
    let package = External::prepare(workspace, PACKAGE, outside.path(), &target)?;
    let mut build = if has_target { package.cargo("build") } else { from_sources(&package) };
    // The module's own source of random bytes instead of wasm-bindgen's.
    build.args(["--target", TARGET]).env("RUSTFLAGS", "--cfg getrandom_backend=\"custom\"");
    process::run(build.env_remove("CARGO_ENCODED_RUSTFLAGS"))?;

    let module = target.join(TARGET).join("debug/hello_wasm.wasm");
    let script = workspace.root().join("tests-external").join(PACKAGE).join("run.mjs");
    process::run(Command::new("node").arg(script).arg(&module))?;
    let bytes = module.metadata().with_context(|| format!("reading {}", module.display()))?.len();
    Ok(Done::Checked(format!("Node runs a module of {:.1} MB, its model included", bytes as f64 / 1e6)))
}

/// `cargo build` by the nightly toolchain, standard library included.
fn from_sources(package: &External) -> Command {
    let mut build = package.by_cargo(toolchains::cargo("nightly"), "build");
    build.arg("-Zbuild-std=std,panic_abort");
    build
}
