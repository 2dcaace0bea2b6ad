//! `top_p`, nucleus sampling (arXiv:1904.09751): transformers' `TopPLogitsWarper`, but ties go to the lowest
//! id.

use super::super::select::reaching;
use super::*;

pub(super) fn step(params: &SamplingParams) -> Step {
    let p = f64::from(params.top_p?);
    filter(params, SamplingField::TopP, move |candidates, best, _| {
        let enough = p * candidates.total(best.score);
        let weight = |candidate: &Candidate| (candidate.score - best.score).exp();
        candidates.keep(reaching(candidates.as_slice(), weight, enough));
    })
}
