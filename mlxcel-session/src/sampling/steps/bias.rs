//! `logit_bias`: transformers' `SequenceBiasLogitsProcessor` for single tokens.

use super::*;

#[derive(Debug)]
struct Bias(SamplingParams);

pub(super) fn step(params: &SamplingParams) -> Step {
    some(params.active_fields().contains(SamplingField::LogitBias).then(|| Bias(params.clone())))
}

impl SamplingStep for Bias {
    fn name(&self) -> &str {
        "logit_bias"
    }

    fn apply(&self, candidates: &mut Candidates, _: &StepContext<'_>) -> Result<()> {
        for (token, bias) in self.0.biases(candidates.vocabulary_size())? {
            candidates.change(token, |score| score + bias);
        }
        Ok(())
    }
}
