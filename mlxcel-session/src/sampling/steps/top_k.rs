//! `top_k`: transformers' `TopKLogitsWarper`, but ties go to the lowest id.

use mlxcel_core::most_likely;

use super::*;

#[derive(Debug)]
struct TopK(usize);

pub(super) fn step(params: &SamplingParams) -> Step {
    active(params, SamplingField::TopK, params.top_k.map(|k| TopK(k as usize)))
}

impl SamplingStep for TopK {
    fn name(&self) -> &str {
        "top_k"
    }

    fn apply(&self, candidates: &mut Candidates, _: &StepContext<'_>) -> Result<()> {
        if self.0 < candidates.len() {
            let scores = candidates.iter().map(|candidate| (candidate.token, candidate.score));
            candidates.keep(most_likely(scores, self.0).into_iter().map(Candidate::from).collect());
        }
        Ok(())
    }
}
