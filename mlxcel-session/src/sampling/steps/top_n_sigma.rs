//! `top_n_sigma` (arXiv:2411.07641), as llama.cpp's `llama_sampler_top_n_sigma`: keeps the logits within `n`
//! standard deviations of the largest. A temperature scales both equally, so this step comes first.

use super::*;

#[derive(Debug)]
struct TopNSigma(f64);

pub(super) fn step(params: &SamplingParams) -> Step {
    active(params, SamplingField::TopNSigma, params.top_n_sigma.map(|n| TopNSigma(f64::from(n))))
}

impl SamplingStep for TopNSigma {
    fn name(&self) -> &str {
        "top_n_sigma"
    }

    fn apply(&self, candidates: &mut Candidates, _: &StepContext<'_>) -> Result<()> {
        let Some(best) = candidates.best() else { return Ok(()) };
        let count = candidates.len() as f64;
        // Relative to the best, so that equal logits have no deviation at all.
        let below = |candidate: Candidate| candidate.score - best.score;
        let mean = candidates.iter().map(below).sum::<f64>() / count;
        let variance = candidates.iter().map(|c| (below(c) - mean).powi(2)).sum::<f64>() / count;
        let least = -self.0 * variance.sqrt();
        candidates.retain(|candidate| below(candidate) >= least);
        Ok(())
    }
}
