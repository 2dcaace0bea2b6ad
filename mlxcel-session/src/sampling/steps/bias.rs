//! `logit_bias`: transformers' `SequenceBiasLogitsProcessor` for single tokens.

use super::*;

pub(super) fn step(params: &SamplingParams) -> Step {
    let own = SamplingParams::greedy().with_logit_bias(params.logit_bias.clone());
    active(params, SamplingField::LogitBias, move |candidates, _| {
        for (token, bias) in own.biases(candidates.vocabulary_size())? {
            candidates.change(token, |score| score + bias);
        }
        Ok(())
    })
}
