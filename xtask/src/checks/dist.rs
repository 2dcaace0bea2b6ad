//! The feature `dist` of mlxcel-iree: the engine on a distribution of IREE's runtime, laid out from the vendored build.
//!
//! IREE's own install rules say which headers a distribution has, and its build which objects are in the one library of
//! the runtime; both were written when eerie-sys was built. The device tests then run on that distribution, with no
//! source of IREE compiled, and the build script is shown distributions that it must refuse.

mod layout;
mod refusals;

use std::io::{BufReader, Read as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use cargo_metadata::{Message, TargetKind};

use crate::process;
use crate::workspace::Workspace;

const PACKAGE: &str = "mlxcel-iree";
/// The crate that builds the runtime from source.
const VENDORED: &str = "eerie-sys";
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
/// The tests of devices and of the engine on them.
const TESTS: [&str; 2] = ["ffi::", "engine::"];
/// The tests of the run side alone.
const RUN_SIDE_TESTS: &str = "bundled_only::";

pub(super) fn check(workspace: &Workspace) -> Result<String> {
    for features in [FEATURES, DOOR, RUN_SIDE] {
        has_not(workspace, features, VENDORED)?;
    }
    for features in [RUN_SIDE, RUN_SIDE_DOOR] {
        has_not(workspace, features, COMPILE_SIDE)?;
    }
    let distribution = workspace.metadata()?.target_directory.into_std_path_buf().join("iree-dist");
    layout::lay_out(&vendored_build(workspace)?, &distribution)?;

    let mut build = workspace.cargo(&["test", "--locked", "--lib", "--no-run"]);
    build.args(FEATURES).env(VARIABLE, &distribution);
    let script = build_script(build)?;
    let refused = refusals::check(&script, &distribution)?;

    let mut total = super::compile::Counts::default();
    for (features, tests) in [(FEATURES, &TESTS[..]), (RUN_SIDE, &[RUN_SIDE_TESTS])] {
        let mut command = workspace.cargo(&["test", "--locked", "--lib"]);
        command.args(features).arg("--").args(tests).env(VARIABLE, &distribution);
        let before = total.passed;
        process::run_watched(&mut command, |line| total.add(line))?;
        if total.passed == before {
            bail!("no test ran");
        }
    }
    Ok(format!("{total}; {refused} wrong environments refused"))
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

/// The folder in which eerie-sys has built the runtime, with the features that the other checks build it with.
fn vendored_build(workspace: &Workspace) -> Result<PathBuf> {
    let features = workspace.features()?;
    let command = workspace.cargo(&["check", "--locked", "--workspace", "--features", &features]);
    let mut found = None;
    for_each_message(command, |message| {
        if let Message::BuildScriptExecuted(script) = message
            && script.package_id.repr.contains(VENDORED)
        {
            found = Some(script.out_dir.into_std_path_buf());
        }
    })?;
    found.with_context(|| format!("cargo did not say where {VENDORED} was built"))
}

/// The build script of mlxcel-iree, as `command` compiles it.
fn build_script(command: Command) -> Result<PathBuf> {
    let mut found = None;
    for_each_message(command, |message| {
        if let Message::CompilerArtifact(artifact) = message
            && artifact.package_id.repr.contains(PACKAGE)
            && artifact.target.kind.contains(&TargetKind::CustomBuild)
        {
            found = artifact.filenames.first().map(|path| path.clone().into_std_path_buf());
        }
    })?;
    found.with_context(|| format!("cargo did not say where the build script of {PACKAGE} is"))
}

/// Runs a cargo command and passes on what it tells machines; what it tells people is shown.
fn for_each_message(mut command: Command, mut see: impl FnMut(Message)) -> Result<()> {
    command.arg("--message-format=json-render-diagnostics").stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().context("starting cargo")?;
    let mut output = BufReader::new(child.stdout.take().context("cargo has no output")?);
    for message in Message::parse_stream(&mut output) {
        see(message.context("reading what cargo says")?);
    }
    // To the end, so that cargo never waits for a reader.
    output.read_to_end(&mut Vec::new()).context("reading what cargo says")?;
    let status = child.wait().context("waiting for cargo")?;
    if !status.success() {
        bail!("cargo failed ({status})");
    }
    Ok(())
}
