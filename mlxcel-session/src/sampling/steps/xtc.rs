//! `xtc`, as llama.cpp's `llama_sampler_xtc`: with the given probability, of the tokens that reach the
//! threshold only the least likely one stays; ties go to the highest id.

use mlxcel_core::Xtc;

use super::*;

#[derive(Debug)]
struct XtcStep {
    probability: f64,
    threshold: f64,
}

pub(super) fn step(params: &SamplingParams) -> Step {
    let step =
        |xtc: Xtc| XtcStep { probability: f64::from(xtc.probability), threshold: f64::from(xtc.threshold) };
    active(params, SamplingField::Xtc, params.xtc.map(step))
}

impl SamplingStep for XtcStep {
    fn name(&self) -> &str {
        "xtc"
    }

    fn apply(&self, candidates: &mut Candidates, context: &StepContext<'_>) -> Result<()> {
        let Some(best) = candidates.best() else { return Ok(()) };
        if context.uniform(1) >= self.probability {
            return Ok(());
        }
        let least = self.threshold * candidates.total(best.score);
        let reaches = |candidate: &Candidate| (candidate.score - best.score).exp() >= least;
        if let Some(last) = candidates
            .iter()
            .filter(reaches)
            .min_by(|a, b| a.score.total_cmp(&b.score).then(b.token.cmp(&a.token)))
        {
            candidates.retain(|candidate| !reaches(&candidate) || candidate.token == last.token);
        }
        Ok(())
    }
}
