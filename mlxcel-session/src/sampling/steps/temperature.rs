//! `temperature` and `dynamic_temperature`: scores are divided by it. Fixed as transformers'
//! `TemperatureLogitsWarper`; dynamic as llama.cpp's `llama_sampler_temp_ext`, by the entropy of the
//! candidates.

use mlxcel_core::DynamicTemperature;

use super::*;

#[derive(Debug)]
struct Temperature {
    fixed: f64,
    dynamic: Option<DynamicTemperature>,
}

/// Below this `exp` is zero: the token would never be drawn.
const LEAST: f64 = -745.0;

pub(super) fn step(params: &SamplingParams) -> Step {
    let is_dynamic = params.active_fields().contains(SamplingField::DynamicTemperature);
    let dynamic = params.dynamic_temperature.filter(|_| is_dynamic);
    let fixed = f64::from(params.temperature);
    active(params, SamplingField::Temperature, Some(Temperature { fixed, dynamic }))
}

impl Temperature {
    fn at(&self, candidates: &Candidates, best: f64) -> f64 {
        let Some(dynamic) = self.dynamic.filter(|_| candidates.len() > 1) else { return self.fixed };
        let (range, exponent) = (f64::from(dynamic.range), f64::from(dynamic.exponent));
        let (low, high) = ((self.fixed - range).max(0.0), self.fixed + range);
        let most = (candidates.len() as f64).ln();
        low + (high - low) * (entropy(candidates, best) / most).clamp(0.0, 1.0).powf(exponent)
    }
}

impl SamplingStep for Temperature {
    fn name(&self) -> &str {
        if self.dynamic.is_some() { "dynamic_temperature" } else { "temperature" }
    }

    fn apply(&self, candidates: &mut Candidates, _: &StepContext<'_>) -> Result<()> {
        let Some(best) = candidates.best() else { return Ok(()) };
        let temperature = self.at(candidates, best.score);
        if temperature > 0.0 {
            // Relative to the best, whose score is then 0 at any temperature.
            candidates.change_all(|candidate| (candidate.score - best.score) / temperature);
            candidates.retain(|candidate| candidate.score >= LEAST);
        } else {
            candidates.keep(vec![best]);
        }
        Ok(())
    }
}

/// The entropy of the softmax of `candidates`, in nats; `best` is the largest score.
pub(super) fn entropy(candidates: &Candidates, best: f64) -> f64 {
    let total = candidates.total(best);
    let scores = candidates.iter().map(|candidate| candidate.score - best);
    let moment: f64 = scores.map(|score| score.exp() * score).sum();
    total.ln() - moment / total
}
