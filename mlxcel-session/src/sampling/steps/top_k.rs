//! `top_k`: transformers' `TopKLogitsWarper`, but ties go to the lowest id.

use mlxcel_core::most_likely;

use super::*;

pub(super) fn step(params: &SamplingParams) -> Step {
    let k = params.top_k? as usize;
    active(params, SamplingField::TopK, move |candidates, _| {
        if k < candidates.len() {
            let scores = candidates.iter().map(|candidate| (candidate.token, candidate.score));
            candidates.keep(most_likely(scores, k).into_iter().map(Candidate::from).collect());
        }
        Ok(())
    })
}
