//! `min_p` (arXiv:2407.01082): transformers' `MinPLogitsWarper`.

use super::*;

#[derive(Debug)]
struct MinP(f64);

pub(super) fn step(params: &SamplingParams) -> Step {
    active(params, SamplingField::MinP, params.min_p.map(|p| MinP(f64::from(p))))
}

impl SamplingStep for MinP {
    fn name(&self) -> &str {
        "min_p"
    }

    fn apply(&self, candidates: &mut Candidates, _: &StepContext<'_>) -> Result<()> {
        let Some(best) = candidates.best() else { return Ok(()) };
        let least = best.score + self.0.ln();
        candidates.retain(|candidate| candidate.score >= least);
        Ok(())
    }
}
