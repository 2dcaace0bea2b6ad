//! `min_p` (arXiv:2407.01082): transformers' `MinPLogitsWarper`.

use super::*;

pub(super) fn step(params: &SamplingParams) -> Step {
    let p = f64::from(params.min_p?);
    filter(params, SamplingField::MinP, move |candidates, best, _| {
        let least = best.score + p.ln();
        candidates.retain(|candidate| candidate.score >= least);
    })
}
