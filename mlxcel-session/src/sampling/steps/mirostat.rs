//! `mirostat`, version 2 (arXiv:2007.14966), as llama.cpp's `llama_sampler_mirostat_v2`. The state that
//! llama.cpp keeps between tokens is recomputed here from the sampled tokens.

use std::f64::consts::LN_2;

use mlxcel_core::Mirostat;

use super::*;

#[derive(Debug)]
struct MirostatStep {
    tau: f64,
    eta: f64,
}

pub(super) fn step(params: &SamplingParams) -> Step {
    let step = |params: Mirostat| MirostatStep { tau: f64::from(params.tau), eta: f64::from(params.eta) };
    active(params, SamplingField::Mirostat, params.mirostat.map(step))
}

impl MirostatStep {
    /// The most surprise that is allowed, in bits.
    fn mu(&self, drawn: &[f32]) -> f64 {
        drawn.iter().fold(2.0 * self.tau, |mu, &logprob| {
            let surprise = -f64::from(logprob) / LN_2;
            mu - self.eta * (surprise - self.tau)
        })
    }
}

impl SamplingStep for MirostatStep {
    fn name(&self) -> &str {
        "mirostat"
    }

    fn apply(&self, candidates: &mut Candidates, context: &StepContext<'_>) -> Result<()> {
        let Some(best) = candidates.best() else { return Ok(()) };
        let mu = self.mu(context.drawn());
        let total = candidates.total(best.score).ln();
        // The most likely token stays, however much it surprises.
        candidates
            .retain(|candidate| candidate == best || (total - (candidate.score - best.score)) / LN_2 <= mu);
        Ok(())
    }
}
