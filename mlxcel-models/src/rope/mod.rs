//! Rotary position embedding: frequencies from a config.

mod epochs;
mod llama3;
mod longrope;
mod settings;
mod yarn;

pub use epochs::RopeEpochs;
pub(crate) use llama3::Llama3;
pub(crate) use settings::{
    Kinds, LayerRopes, Partial, ROWS_IN_PAIRS, RopeSettings, is_described, refuse_parts,
};

use serde::{Deserialize, Serialize};

/// Rotary position embedding (Su et al., 2021, "RoFormer").
///
/// Element `i` of the first `rotary_dim / 2` elements of a query or key head is rotated together with element
/// `i + rotary_dim / 2`, like transformers' `rotate_half`: the pair `a`, `b` becomes `a·cos − b·sin`, `b·cos
/// + a·sin`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rope {
    /// The number of rotated elements per head; even.
    pub rotary_dim: usize,
    /// The angle per position of each pair, in radians, including scaling: `rotary_dim / 2` numbers. Negative
    /// ones turn in the other direction (nanochat).
    pub inv_freq: Vec<f32>,
    /// A factor of cosines and sines.
    pub attention_factor: f32,
    /// Whether elements `2i` and `2i + 1` are rotated together instead, as in the original RoFormer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub interleaved: bool,
    /// How many positions before their own elements are rotated by; those before the first position by the
    /// first.
    #[serde(default, skip_serializing_if = "is_none")]
    pub delay: usize,
    /// Frequencies for sequences longer than the original context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub long: Option<LongRope>,
}

/// The frequencies of sequences longer than the original context (Ding et al., 2024, "LongRoPE"). They apply
/// to all positions, so a sequence that grows beyond the original context is recomputed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LongRope {
    /// The angle per position of each pair, in radians.
    pub inv_freq: Vec<f32>,
    /// The maximum length for which [`Rope::inv_freq`] applies.
    pub original_context: usize,
    /// The factor of cosines and sines of longer sequences, if it differs from [`Rope::attention_factor`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention_factor: Option<f32>,
}

impl Rope {
    /// The cosine and sine of each pair at `position` in a sequence of `length` positions, multiplied by
    /// [`attention_factor`](Self::attention_factor) or, beyond the original context, by
    /// [`LongRope::attention_factor`].
    ///
    /// `cos` and `sin` have `rotary_dim / 2` elements each; if they are shorter, only the first ones are
    /// computed. As in transformers the angle is a float32 product. Cosine and sine are evaluated in
    /// float64 and rounded, so they do not depend on a platform's reduction of large angles.
    pub fn cos_sin(&self, position: usize, length: usize, cos: &mut [f32], sin: &mut [f32]) {
        let factor = self.factor(length);
        let position = position.saturating_sub(self.delay);
        for ((frequency, cos), sin) in self.frequencies(length).iter().zip(cos).zip(sin) {
            let angle = f64::from(position as f32 * frequency);
            *cos = angle.cos() as f32 * factor;
            *sin = angle.sin() as f32 * factor;
        }
    }

    /// The same in the other direction: `a`, `b` becomes `a·cos + b·sin`, `b·cos − a·sin`.
    pub(crate) fn reversed(mut self) -> Self {
        let long = self.long.iter_mut().flat_map(|long| &mut long.inv_freq);
        self.inv_freq.iter_mut().chain(long).for_each(|frequency| *frequency = -*frequency);
        self
    }

    /// The frequencies of a sequence of `length` positions.
    pub fn frequencies(&self, length: usize) -> &[f32] {
        match &self.long {
            Some(long) if length > long.original_context => &long.inv_freq,
            _ => &self.inv_freq,
        }
    }

    /// The factor of cosines and sines of a sequence of `length` positions.
    fn factor(&self, length: usize) -> f32 {
        let long = self.long.as_ref().filter(|long| length > long.original_context);
        long.and_then(|long| long.attention_factor).unwrap_or(self.attention_factor)
    }
}

fn is_none(delay: &usize) -> bool {
    *delay == 0
}

/// `theta^(−2i/dim)`, rounded where transformers rounds: exponent, power and reciprocal in single precision.
fn frequencies(theta: f64, dim: usize) -> Vec<f32> {
    periods(theta, dim).into_iter().map(|period| 1.0 / period).collect()
}

/// `theta^(2i/dim)`: of each pair the positions for an angle of one.
fn periods(theta: f64, dim: usize) -> Vec<f32> {
    let theta = f64::from(theta as f32);
    let pair = |i| {
        let exponent = (2 * i) as f32 / dim as f32;
        // Evaluated in double precision and rounded once, which is the closest any single-precision power
        // comes.
        theta.powf(f64::from(exponent)) as f32
    };
    (0..dim.div_ceil(2)).map(pair).collect()
}

#[cfg(test)]
mod tests;
