//! `top_p`, nucleus sampling (arXiv:1904.09751): transformers' `TopPLogitsWarper`, but ties go to the lowest
//! id.

use super::super::select::reaching;
use super::*;

#[derive(Debug)]
struct TopP(f64);

pub(super) fn step(params: &SamplingParams) -> Step {
    active(params, SamplingField::TopP, params.top_p.map(|p| TopP(f64::from(p))))
}

impl SamplingStep for TopP {
    fn name(&self) -> &str {
        "top_p"
    }

    fn apply(&self, candidates: &mut Candidates, _: &StepContext<'_>) -> Result<()> {
        let Some(best) = candidates.best() else { return Ok(()) };
        let enough = self.0 * candidates.total(best.score);
        let weight = |candidate: &Candidate| (candidate.score - best.score).exp();
        candidates.keep(reaching(candidates.as_slice(), weight, enough));
        Ok(())
    }
}
