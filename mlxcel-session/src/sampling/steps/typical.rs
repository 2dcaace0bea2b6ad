//! `typical_p`, locally typical sampling (arXiv:2202.00666): transformers' `TypicalLogitsWarper`. Keeps the
//! tokens whose surprise is nearest to the entropy; of those that are equally near all or none.

use super::super::select::reaching;
use super::temperature::entropy;
use super::*;

#[derive(Debug)]
struct TypicalP(f64);

pub(super) fn step(params: &SamplingParams) -> Step {
    active(params, SamplingField::TypicalP, params.typical_p.map(|p| TypicalP(f64::from(p))))
}

impl SamplingStep for TypicalP {
    fn name(&self) -> &str {
        "typical_p"
    }

    fn apply(&self, candidates: &mut Candidates, _: &StepContext<'_>) -> Result<()> {
        let Some(best) = candidates.best() else { return Ok(()) };
        let total = candidates.total(best.score);
        // The surprise is `ln(total) - (score - best)`.
        let typical = total.ln() - entropy(candidates, best.score);
        let nearness = |candidate: Candidate| -(candidate.score - best.score - typical).abs();
        let list = candidates.as_slice();
        // Candidates by their place in the list, and by how near they are.
        let near: Vec<Candidate> =
            (0..).zip(list).map(|(place, candidate)| Candidate::new(place, nearness(*candidate))).collect();
        let weight = |near: &Candidate| (list[near.token as usize].score - best.score).exp();
        let kept = reaching(&near, weight, self.0 * total);
        let least = kept.last().map_or(f64::NEG_INFINITY, |last| last.score);
        candidates.retain(|candidate| nearness(candidate) >= least);
        Ok(())
    }
}
