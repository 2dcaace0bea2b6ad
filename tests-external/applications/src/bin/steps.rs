//! Samples with a step of its own, which says no token twice in a row of eight: `steps MODEL`.
use std::sync::Arc;

use mlxcel_session::{Candidates, Model, Options, Result, SamplingStep, StepContext};

#[derive(Debug)]
struct NeverAgain;

impl SamplingStep for NeverAgain {
    fn name(&self) -> &str {
        "never-again"
    }

    fn apply(&self, candidates: &mut Candidates, context: &StepContext<'_>) -> Result<()> {
        let last = context.last_tokens(Some(8));
        candidates.retain(|candidate| !last.contains(&candidate.token));
        Ok(())
    }
}

fn main() -> Result<()> {
    let model = Model::open(std::env::args().nth(1).unwrap_or_default())?;
    let options = Options::new(40).with_step(Arc::new(NeverAgain)).with_temperature(0.8).with_seed(1);
    let story = model.generate("Once upon a time", &options)?.complete()?;
    assert!(story.tokens.windows(9).all(|tokens| !tokens[..8].contains(&tokens[8])));
    println!("{}", story.text);
    Ok(())
}
