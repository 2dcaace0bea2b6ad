//! YaRN (Peng et al., 2023, "YaRN: Efficient Context Window Extension of Large Language Models").

use std::f64::consts::TAU;

use mlxcel_core::Result;

use super::periods;
use crate::config::Fields;

/// What YaRN makes of the frequencies: those that turn fast within the original context stay, those that turn
/// slowly are divided by a factor, and those between are blended. Constants and rounding are those of
/// `_compute_yarn_parameters` in transformers' `modeling_rope_utils`.
pub(super) struct Yarn {
    factor: f64,
    /// The turns within the original context from which on frequencies stay.
    beta_fast: f64,
    /// The turns up to which they are divided.
    beta_slow: f64,
    /// Whether the pairs at these bounds are rounded to whole ones, outwards.
    truncate: bool,
    original_context: f64,
    pub(super) attention_factor: f32,
}

impl Yarn {
    /// `truncate` is a setting of the object around those of a layer type, if there is such.
    pub(super) fn read(
        scaling: Fields<'_>,
        truncate: bool,
        original_context: f64,
        context_length: usize,
    ) -> Result<Self> {
        let factor = match scaling.positive("factor")? {
            Some(factor) => factor,
            None => context_length as f64 / original_context,
        };
        // A zero counts as absent there.
        let set = |key| -> Result<Option<f64>> { Ok(scaling.number(key)?.filter(|number| *number != 0.0)) };
        let attention_factor = match scaling.number("attention_factor")? {
            Some(factor) => factor,
            None => match (set("mscale")?, set("mscale_all_dim")?) {
                (Some(mscale), Some(all)) => magnitude(factor, mscale) / magnitude(factor, all),
                _ => magnitude(factor, 1.0),
            },
        };
        Ok(Self {
            factor,
            beta_fast: scaling.positive("beta_fast")?.unwrap_or(32.0),
            beta_slow: scaling.positive("beta_slow")?.unwrap_or(1.0),
            truncate,
            original_context,
            attention_factor: attention_factor as f32,
        })
    }

    pub(super) fn frequencies(&self, theta: f64, dim: usize) -> Vec<f32> {
        // The pair that makes so many turns within the original context.
        let pair =
            |turns: f64| dim as f64 * (self.original_context / (turns * TAU)).ln() / (2.0 * theta.ln());
        let (mut low, mut high) = (pair(self.beta_fast), pair(self.beta_slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(dim as f64 - 1.0));
        if low == high {
            high += 0.001;
        }
        let blend = |(index, period): (usize, f32)| {
            let ramp = ((index as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
            let kept = 1.0 - ramp;
            let divided = 1.0 / (self.factor as f32 * period);
            divided * (1.0 - kept) + 1.0 / period * kept
        };
        periods(theta, dim).into_iter().enumerate().map(blend).collect()
    }
}

/// The magnitude of attention after stretching by `factor`, with a weight for the logarithm.
pub(super) fn magnitude(factor: f64, weight: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 }
}
