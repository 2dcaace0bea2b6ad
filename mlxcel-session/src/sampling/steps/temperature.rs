//! `temperature` and `dynamic_temperature`: scores are divided by it. Fixed as transformers'
//! `TemperatureLogitsWarper`; dynamic as llama.cpp's `llama_sampler_temp_ext`, by the entropy of the
//! candidates.

use super::*;

/// Below this `exp` is zero: the token would never be drawn.
const LEAST: f64 = -745.0;

pub(super) fn step(params: &SamplingParams) -> Step {
    let is_dynamic = params.active_fields().contains(SamplingField::DynamicTemperature);
    let dynamic = params.dynamic_temperature.filter(|_| is_dynamic);
    let field = if is_dynamic { SamplingField::DynamicTemperature } else { SamplingField::Temperature };
    let fixed = f64::from(params.temperature);
    filter(params, field, move |candidates, best, _| {
        let temperature = match dynamic {
            Some(dynamic) if candidates.len() > 1 => {
                let (range, exponent) = (f64::from(dynamic.range), f64::from(dynamic.exponent));
                let (low, high) = ((fixed - range).max(0.0), fixed + range);
                let most = (candidates.len() as f64).ln();
                low + (high - low) * (entropy(candidates, best.score) / most).clamp(0.0, 1.0).powf(exponent)
            }
            _ => fixed,
        };
        if temperature > 0.0 {
            // Relative to the best, whose score is then 0 at any temperature.
            candidates.change_all(|candidate| (candidate.score - best.score) / temperature);
            candidates.retain(|candidate| candidate.score >= LEAST);
        } else {
            candidates.keep(vec![best]);
        }
    })
}

/// The entropy of the softmax of `candidates`, in nats; `best` is the largest score.
pub(super) fn entropy(candidates: &Candidates, best: f64) -> f64 {
    let total = candidates.total(best);
    let scores = candidates.iter().map(|candidate| candidate.score - best);
    let moment: f64 = scores.map(|score| score.exp() * score).sum();
    total.ln() - moment / total
}
