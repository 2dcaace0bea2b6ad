//! `mirostat`, version 2 (arXiv:2007.14966), as llama.cpp's `llama_sampler_mirostat_v2`. The state that
//! llama.cpp keeps between tokens is recomputed here from the sampled tokens.

use std::f64::consts::LN_2;

use super::*;

pub(super) fn step(params: &SamplingParams) -> Step {
    let mirostat = params.mirostat?;
    let (tau, eta) = (f64::from(mirostat.tau), f64::from(mirostat.eta));
    filter(params, SamplingField::Mirostat, move |candidates, best, context| {
        // The most surprise that is allowed, in bits.
        let mu = context.drawn().iter().fold(2.0 * tau, |mu, &logprob| {
            let surprise = -f64::from(logprob) / LN_2;
            mu - eta * (surprise - tau)
        });
        let total = candidates.total(best.score).ln();
        // The most likely token stays, however much it surprises.
        candidates
            .retain(|candidate| candidate == best || (total - (candidate.score - best.score)) / LN_2 <= mu);
    })
}
