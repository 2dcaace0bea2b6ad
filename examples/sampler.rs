//! A sampling step of one's own: no three words in a row come twice.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{Write, stdout};
use std::sync::Arc;

use mlxcel_session::{Candidates, Model, Options, Result, SamplingStep, StepContext};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/models/storyteller");

/// Removes the tokens that would repeat a run of three.
#[derive(Debug)]
struct NoRepeatedRuns;

impl SamplingStep for NoRepeatedRuns {
    fn name(&self) -> &str {
        "no_repeated_runs"
    }

    /// A step is a pure function of the tokens so far: batches and rewinding do not change what it does.
    fn apply(&self, candidates: &mut Candidates, context: &StepContext<'_>) -> Result<()> {
        let tokens = context.tokens();
        let Some(last) = tokens.last_chunk::<2>() else { return Ok(()) };
        for run in tokens.windows(3).filter(|run| run[..2] == *last) {
            candidates.remove(run[2]);
        }
        Ok(())
    }
}

pub(crate) fn main() -> std::result::Result<(), Box<dyn Error>> {
    let model = Model::open(MODEL)?;
    let plain = Options::new(60).with_ignore_stop(true);
    for options in [plain.clone(), plain.with_step(Arc::new(NoRepeatedRuns))] {
        let completion = model.generate("The fox ran and ran and", &options)?.complete()?;
        writeln!(stdout(), "{}\n", completion.text)?;
    }
    Ok(())
}
