//! `typical_p`, locally typical sampling (arXiv:2202.00666): transformers' `TypicalLogitsWarper`. Keeps the
//! tokens whose surprise is nearest to the entropy; of those that are equally near all or none.

use super::super::select::reaching;
use super::temperature::entropy;
use super::*;

pub(super) fn step(params: &SamplingParams) -> Step {
    let p = f64::from(params.typical_p?);
    filter(params, SamplingField::TypicalP, move |candidates, best, _| {
        let total = candidates.total(best.score);
        // The surprise is `ln(total) - (score - best)`.
        let typical = total.ln() - entropy(candidates, best.score);
        let nearness = |candidate: Candidate| -(candidate.score - best.score - typical).abs();
        let list = candidates.as_slice();
        // Candidates by their place in the list, and by how near they are.
        let near: Vec<Candidate> =
            (0..).zip(list).map(|(place, candidate)| Candidate::new(place, nearness(*candidate))).collect();
        let weight = |near: &Candidate| (list[near.token as usize].score - best.score).exp();
        let kept = reaching(&near, weight, p * total);
        let least = kept.last().map_or(f64::NEG_INFINITY, |last| last.score);
        candidates.retain(|candidate| nearness(candidate) >= least);
    })
}
