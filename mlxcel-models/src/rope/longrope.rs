//! LongRoPE (Ding et al., 2024, "LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens").

use mlxcel_core::Result;

use super::{LongRope, periods};
use crate::config::Fields;

/// A divisor of each frequency for sequences within the original context, and another for longer ones, as
/// `_compute_longrope_parameters` in transformers' `modeling_rope_utils` has them.
pub(super) struct LongFactors {
    short: Vec<f64>,
    long: Vec<f64>,
    original_context: usize,
    pub(super) attention_factor: f32,
}

impl LongFactors {
    /// `pairs` is how many factors there must be.
    pub(super) fn read(
        scaling: Fields<'_>,
        pairs: usize,
        original_context: f64,
        context_length: usize,
    ) -> Result<Self> {
        let factors = |key: &str| -> Result<Vec<f64>> {
            let factors = scaling.positives(key)?.ok_or_else(|| scaling.absent(key))?;
            if factors.len() == pairs {
                return Ok(factors);
            }
            let message =
                format!("{} factors are given for {pairs} pairs of rotated elements", factors.len());
            Err(scaling.wrong(key, message))
        };
        let stretch = match scaling.positive("factor")? {
            Some(factor) => factor,
            None => context_length as f64 / original_context,
        };
        let attention_factor = match scaling.number("attention_factor")? {
            Some(factor) => factor,
            None if stretch <= 1.0 => 1.0,
            None => (1.0 + stretch.ln() / original_context.ln()).sqrt(),
        };
        Ok(Self {
            short: factors("short_factor")?,
            long: factors("long_factor")?,
            original_context: original_context as usize,
            attention_factor: attention_factor as f32,
        })
    }

    /// The frequencies within the original context, and those beyond.
    pub(super) fn frequencies(&self, theta: f64, dim: usize) -> (Vec<f32>, LongRope) {
        let divided = |factors: &[f64]| -> Vec<f32> {
            periods(theta, dim)
                .iter()
                .zip(factors)
                .map(|(period, factor)| 1.0 / (*factor as f32 * period))
                .collect()
        };
        let long = LongRope {
            inv_freq: divided(&self.long),
            original_context: self.original_context,
            attention_factor: None,
        };
        (divided(&self.short), long)
    }
}
