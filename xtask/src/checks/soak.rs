//! The tests that take minutes and are ignored elsewhere: thousands of sessions from many threads on each
//! engine, programs that are killed while they write, every text of a published model, and thousands of
//! random checkpoints.

use anyhow::{Result, bail};

use super::compile::Counts;
use crate::workspace::Workspace;
use crate::{process, setup};

pub(super) fn check(workspace: &Workspace) -> Result<String> {
    let features = workspace.features()?;
    let tests = ["test", "--locked", "--workspace", "--features", &features];
    let mut command = workspace.cargo_with_lints(&tests);
    command.args(["--test", "suite", "--test", "programs", "--", "--ignored", "--nocapture"]);
    command.args(["load::", "interrupted::", "published::"]);
    let mut total = Counts::default();
    let mut engines = vec![("portable,mlx", "5000"), ("iree", "200")];
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        setup::pjrt(workspace)?;
        engines.push(("pjrt", "200"));
    }
    process::run_watched(&mut command, |line| total.add(line))?;
    for (engines, checkpoints) in engines {
        let mut command = workspace.cargo_with_lints(&tests);
        command.args(["--test", "suite", "--", "--nocapture", "settings::"]);
        command.env("MLXCEL_SETTINGS", checkpoints).env("MLXCEL_TEST_ENGINES", engines);
        process::run_watched(&mut command, |line| total.add(line))?;
    }
    if total.passed == 0 {
        bail!("no test ran");
    }
    Ok(total.to_string())
}
