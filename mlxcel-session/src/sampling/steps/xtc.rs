//! `xtc`, as llama.cpp's `llama_sampler_xtc`: with the given probability, of the tokens that reach the
//! threshold only the least likely one stays; ties go to the highest id.

use super::*;

pub(super) fn step(params: &SamplingParams) -> Step {
    let xtc = params.xtc?;
    filter(params, SamplingField::Xtc, move |candidates, best, context| {
        if context.uniform(1) >= f64::from(xtc.probability) {
            return;
        }
        let least = f64::from(xtc.threshold) * candidates.total(best.score);
        let reaches = |candidate: &Candidate| (candidate.score - best.score).exp() >= least;
        if let Some(last) = candidates
            .iter()
            .filter(reaches)
            .min_by(|a, b| a.score.total_cmp(&b.score).then(b.token.cmp(&a.token)))
        {
            candidates.retain(|candidate| !reaches(&candidate) || candidate.token == last.token);
        }
    })
}
