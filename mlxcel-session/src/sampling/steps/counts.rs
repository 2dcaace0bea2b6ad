//! `presence_penalty` and `frequency_penalty`, as OpenAI's interface defines them and vLLM and llama.cpp
//! apply them: `score - presence - frequency * count` for each token that was generated.

use super::*;

pub(super) fn step(params: &SamplingParams) -> Step {
    let penalty = |penalty: Option<f32>| f64::from(penalty.unwrap_or(0.0));
    let (presence, frequency) = (penalty(params.presence_penalty), penalty(params.frequency_penalty));
    if presence == 0.0 && frequency == 0.0 {
        return None;
    }
    let window = params.penalty_window;
    named("presence_and_frequency_penalty", move |candidates, context| {
        let (generated, window) = (context.generated(), context.last_tokens(window));
        let seen = &generated[generated.len().saturating_sub(window.len())..];
        for (token, count) in counts(seen) {
            candidates.change(token, |score| score - (presence + frequency * count as f64));
        }
        Ok(())
    })
}
