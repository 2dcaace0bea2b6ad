//! The tests that take minutes and are ignored elsewhere: thousands of sessions from many threads on each engine, and programs that
//! are killed while they write.

use anyhow::{Result, bail};

use super::compile::Counts;
use crate::process;
use crate::workspace::Workspace;

pub(super) fn check(workspace: &Workspace) -> Result<String> {
    let features = workspace.features()?;
    let mut command = workspace.cargo(&["test", "--locked", "--workspace", "--features", &features]);
    command.args(["--test", "load", "--test", "interrupted", "--", "--ignored", "--nocapture"]);
    let mut total = Counts::default();
    process::run_watched(&mut command, |line| total.add(line))?;
    if total.passed == 0 {
        bail!("no test ran");
    }
    Ok(total.to_string())
}
