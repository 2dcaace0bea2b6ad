//! `presence_penalty` and `frequency_penalty`, as OpenAI's interface defines them and vLLM and llama.cpp
//! apply them: `score - presence - frequency * count` for each token that was generated.

use super::*;

#[derive(Debug)]
struct Counts {
    presence: f64,
    frequency: f64,
    window: Option<u32>,
}

pub(super) fn step(params: &SamplingParams) -> Step {
    let penalty = |penalty: Option<f32>| f64::from(penalty.unwrap_or(0.0));
    let (presence, frequency) = (penalty(params.presence_penalty), penalty(params.frequency_penalty));
    let window = params.penalty_window;
    some((presence != 0.0 || frequency != 0.0).then_some(Counts { presence, frequency, window }))
}

impl SamplingStep for Counts {
    fn name(&self) -> &str {
        "presence_and_frequency_penalty"
    }

    fn apply(&self, candidates: &mut Candidates, context: &StepContext<'_>) -> Result<()> {
        let (generated, window) = (context.generated(), context.last_tokens(self.window));
        let seen = &generated[generated.len().saturating_sub(window.len())..];
        for (token, count) in counts(seen) {
            candidates.change(token, |score| score - (self.presence + self.frequency * count as f64));
        }
        Ok(())
    }
}
