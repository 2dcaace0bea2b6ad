//! `top_n_sigma` (arXiv:2411.07641), as llama.cpp's `llama_sampler_top_n_sigma`: keeps the logits within `n`
//! standard deviations of the largest. A temperature scales both equally, so this step comes first.

use super::*;

pub(super) fn step(params: &SamplingParams) -> Step {
    let n = f64::from(params.top_n_sigma?);
    filter(params, SamplingField::TopNSigma, move |candidates, best, _| {
        let count = candidates.len() as f64;
        // Relative to the best, so that equal logits have no deviation at all.
        let below = |candidate: Candidate| candidate.score - best.score;
        let mean = candidates.iter().map(below).sum::<f64>() / count;
        let variance = candidates.iter().map(|c| (below(c) - mean).powi(2)).sum::<f64>() / count;
        let least = -n * variance.sqrt();
        candidates.retain(|candidate| below(candidate) >= least);
    })
}
