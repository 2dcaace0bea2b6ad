//! Fuzzing for a fixed time: each target from the committed corpus, with a seed that is logged.

use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::fuzz::Fuzzer;
use crate::process;
use crate::workspace::Workspace;

/// How long each target is fuzzed for a change, which finds what is wrong at once; the tests run the corpus
/// besides.
const TIME: Duration = Duration::from_secs(2);
/// The same in a night.
const LONG: Duration = Duration::from_secs(300);

pub(super) fn check(workspace: &Workspace, long: bool) -> Result<String> {
    let fuzzer = Fuzzer::build(workspace)?;
    let mut summary = String::new();
    let mut seed = String::new();
    process::run_watched(&mut fuzzer.run(&[], if long { LONG } else { TIME }), |line| {
        if line.starts_with("seed ") {
            seed = line.to_owned();
        }
        line.clone_into(&mut summary);
    })
    .with_context(|| format!("{summary}, by {seed}"))?;
    if !summary.contains(" inputs, ") || summary.starts_with("0 inputs") {
        bail!("no input ran: {summary}");
    }
    Ok(format!("{summary}, by {seed}"))
}
