//! The feature `dist` of mlxcel-iree: the engine on a distribution of IREE's runtime.
//!
//! The distribution is made from the sources that `vendored` compiles, under IREE's own names. The device
//! tests then run on it, with no source of IREE compiled, and the build script is shown distributions that it
//! must refuse.

mod refusals;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use cargo_metadata::{Message, TargetKind};

use crate::workspace::Workspace;
use crate::{generate, process};

const PACKAGE: &str = "mlxcel-iree";
/// The crate with the build script.
const NATIVE: &str = "mlxcel-iree-sys";
/// What compiles C.
const COMPILER: &str = "cc";
/// Says what a distribution was made from.
const STAMP: &str = "made-from-sha256";
/// Where the build script looks for a distribution.
const VARIABLE: &str = "IREE_DIST";
/// The crate that compiles programs.
const COMPILE_SIDE: &str = "mlxcel-iree-compile";
/// With the distribution and the compile side, and with nothing else.
const FEATURES: [&str; 5] = ["--package", PACKAGE, "--no-default-features", "--features", "compile,dist"];
/// The same through the door.
const DOOR: [&str; 5] = ["--package", "mlxcel-session", "--no-default-features", "--features", "iree-dist"];
/// The run side alone, of applications that ship bundles.
const RUN_SIDE: [&str; 5] = ["--package", PACKAGE, "--no-default-features", "--features", "dist"];
/// The run side through the door; its runtime is built from source.
const RUN_SIDE_DOOR: [&str; 5] =
    ["--package", "mlxcel-session", "--no-default-features", "--features", "iree-runtime"];
/// The runtime alone.
const RUNTIME: [&str; 5] =
    ["--package", "mlxcel-iree-runtime", "--no-default-features", "--features", "dist"];
/// The engine's own tests; what compiles many programs is the same on every runtime.
const TESTS: &str = "engine::tests::";
/// The tests of the run side alone.
const RUN_SIDE_TESTS: &str = "bundled_only::";

pub(super) fn check(workspace: &Workspace) -> Result<String> {
    for features in [FEATURES, DOOR, RUN_SIDE] {
        has_not(workspace, features, COMPILER)?;
    }
    for features in [RUN_SIDE, RUN_SIDE_DOOR] {
        has_not(workspace, features, COMPILE_SIDE)?;
    }
    let distribution = workspace.metadata()?.target_directory.into_std_path_buf().join("iree-dist");
    lay_out(workspace, &distribution)?;

    // With both features the script can be asked about each.
    let mut build = workspace.cargo(&["check", "--locked", "--package", NATIVE, "--features", "dist"]);
    build.env(VARIABLE, &distribution);
    let script = build_script(build)?;
    let refused = refusals::check(&script, &distribution)?;

    let mut total = super::compile::Counts::default();
    for (features, tests) in [(RUNTIME, ""), (FEATURES, TESTS), (RUN_SIDE, RUN_SIDE_TESTS)] {
        let mut command = workspace.cargo(&["test", "--locked", "--lib"]);
        command.args(features).args(["--", tests]).env(VARIABLE, &distribution);
        let before = total.passed;
        process::run_watched(&mut command, |line| total.add(line))?;
        if total.passed == before {
            bail!("no test ran");
        }
    }
    Ok(format!("{total}; {refused} wrong environments rejected"))
}

/// The engine with these features must not have the crate `unwanted` below it.
fn has_not(workspace: &Workspace, features: [&str; 5], unwanted: &str) -> Result<()> {
    let mut command = workspace.cargo(&["tree", "--locked", "--edges", "normal,build", "--prefix", "none"]);
    let tree = process::output(command.args(["--format", "{p}"]).args(features))?;
    let names: Vec<_> = tree.lines().filter_map(|line| line.split_whitespace().next()).collect();
    if names.contains(&unwanted) || !names.contains(&PACKAGE) {
        bail!("`{}` has {unwanted} below it, or no {PACKAGE}", features.join(" "));
    }
    Ok(())
}

/// Makes the distribution, which is left as it is where its sources have not changed.
fn lay_out(workspace: &Workspace, distribution: &Path) -> Result<()> {
    let stamp_at = distribution.join(STAMP);
    let sources = workspace.root().join(NATIVE).join("iree/.sha256");
    let stamp = fs::read_to_string(&sources).with_context(|| format!("reading {}", sources.display()))?;
    if fs::read_to_string(&stamp_at).is_ok_and(|found| found == stamp) {
        return Ok(());
    }
    let mut command = generate::generator(workspace, &["distribution".as_ref(), distribution.as_os_str()])?;
    process::run(&mut command)?;
    fs::write(&stamp_at, stamp).context("writing the stamp of the distribution")
}

fn build_script(command: Command) -> Result<PathBuf> {
    let mut found = None;
    process::for_each_message(command, |message| {
        if let Message::CompilerArtifact(artifact) = message
            && artifact.package_id.repr.contains(NATIVE)
            && artifact.target.kind.contains(&TargetKind::CustomBuild)
        {
            found = artifact.filenames.first().map(|path| path.clone().into_std_path_buf());
        }
    })?;
    found.with_context(|| format!("cargo did not say where the build script of {NATIVE} is"))
}
