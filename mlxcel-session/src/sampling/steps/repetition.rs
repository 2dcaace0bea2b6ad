//! `repetition_penalty` (arXiv:1909.05858), as transformers' `RepetitionPenaltyLogitsProcessor`: negative
//! logits are multiplied, the others divided. The prompt counts.

use super::*;

#[derive(Debug)]
struct Repetition {
    penalty: f64,
    window: Option<u32>,
}

pub(super) fn step(params: &SamplingParams) -> Step {
    let (penalty, window) = (params.repetition_penalty.map(f64::from), params.penalty_window);
    let step = penalty.map(|penalty| Repetition { penalty, window });
    active(params, SamplingField::RepetitionPenalty, step)
}

impl SamplingStep for Repetition {
    fn name(&self) -> &str {
        "repetition_penalty"
    }

    fn apply(&self, candidates: &mut Candidates, context: &StepContext<'_>) -> Result<()> {
        for (token, _) in counts(context.last_tokens(self.window)) {
            candidates.change(
                token,
                |score| {
                    if score < 0.0 { score * self.penalty } else { score / self.penalty }
                },
            );
        }
        Ok(())
    }
}
