//! `repetition_penalty` (arXiv:1909.05858), as transformers' `RepetitionPenaltyLogitsProcessor`: negative
//! logits are multiplied, the others divided. The prompt counts.

use super::*;

pub(super) fn step(params: &SamplingParams) -> Step {
    let (penalty, window) = (f64::from(params.repetition_penalty?), params.penalty_window);
    active(params, SamplingField::RepetitionPenalty, move |candidates, context| {
        let penalized = |score| if score < 0.0 { score * penalty } else { score / penalty };
        counts(context.last_tokens(window)).for_each(|(token, _)| candidates.change(token, penalized));
        Ok(())
    })
}
