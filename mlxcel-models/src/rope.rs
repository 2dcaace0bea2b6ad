//! Rotary position embedding: the frequencies that a configuration asks for.

use mlxcel_core::Result;

use crate::config::Fields;

/// The base of the frequencies where no setting gives one, as in transformers.
const DEFAULT_THETA: f64 = 10_000.0;

/// Rotary position embedding (Su et al., 2021, "RoFormer").
///
/// Element `i` of the first `rotary_dim / 2` elements of a query or key head is rotated together with element
/// `i + rotary_dim / 2`, as transformers' `rotate_half` does: with `a` and `b` the two,
/// `a' = a·cos − b·sin` and `b' = b·cos + a·sin`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// How many elements of each head are rotated; even.
    pub rotary_dim: usize,
    /// The angle per position of each pair, in radians: `rotary_dim / 2` numbers, scaling included.
    pub inv_freq: Vec<f32>,
    /// What the cosines and sines are multiplied with.
    pub attention_factor: f32,
    /// Whether element `2i` is rotated together with `2i + 1` instead, in their places: what checkpoints in the layout of the
    /// original RoFormer want.
    pub interleaved: bool,
    /// Other frequencies for sequences beyond the original context.
    pub long: Option<LongRope>,
}

/// The frequencies of a sequence that is longer than the original context (Ding et al., 2024, "LongRoPE"): all of its
/// positions are rotated by them, so what was computed before the sequence grew beyond it is computed again.
#[derive(Clone, Debug, PartialEq)]
pub struct LongRope {
    /// The angle per position of each pair, in radians.
    pub inv_freq: Vec<f32>,
    /// The most positions of a sequence that [`Rope::inv_freq`] is for.
    pub original_context: usize,
}

impl Rope {
    /// The cosine and sine of each pair at `position` in a sequence of `length` positions, times
    /// [`attention_factor`](Self::attention_factor).
    ///
    /// `cos` and `sin` have room for `rotary_dim / 2` numbers each; of shorter ones only what they hold is computed.
    /// As in transformers the angle is a product in single precision; its cosine and sine are evaluated in double
    /// precision and rounded, so they do not depend on how a platform reduces large angles.
    pub fn cos_sin(&self, position: usize, length: usize, cos: &mut [f32], sin: &mut [f32]) {
        for ((frequency, cos), sin) in self.frequencies(length).iter().zip(cos).zip(sin) {
            let angle = f64::from(position as f32 * frequency);
            *cos = angle.cos() as f32 * self.attention_factor;
            *sin = angle.sin() as f32 * self.attention_factor;
        }
    }

    /// The frequencies of a sequence of `length` positions.
    pub fn frequencies(&self, length: usize) -> &[f32] {
        match &self.long {
            Some(long) if length > long.original_context => &long.inv_freq,
            _ => &self.inv_freq,
        }
    }

    /// Reads the settings of `config.json` in either layout: `rope_parameters` with all of them, or `rope_theta`
    /// beside `rope_scaling`. A theta inside the object goes before one outside, and `rope_scaling` before
    /// `rope_parameters`, as in transformers. All `head_dim` elements of a head, an even number, are rotated.
    pub(crate) fn from_config(config: Fields<'_>, head_dim: usize, context_length: usize) -> Result<Self> {
        let scaling = match config.object("rope_scaling")? {
            Some(scaling) => Some(scaling),
            None => config.object("rope_parameters")?,
        };
        for fields in scaling.iter().chain([&config]) {
            if let Some(factor) = fields.number("partial_rotary_factor")?.filter(|factor| *factor != 1.0) {
                return Err(fields.unsupported(
                    "partial_rotary_factor",
                    format!("rotating only {factor} of each head is not supported for this model_type"),
                ));
            }
        }
        let theta = match scaling.map(|scaling| scaling.positive("rope_theta")).transpose()?.flatten() {
            Some(theta) => theta,
            None => config.positive("rope_theta")?.unwrap_or(DEFAULT_THETA),
        };
        let mut inv_freq = frequencies(theta, head_dim);
        if let Some(scaling) = scaling {
            let key = if scaling.get("rope_type").is_some() { "rope_type" } else { "type" };
            match scaling.text(key)?.unwrap_or("default") {
                "default" => {}
                "linear" => {
                    let factor = scaling.required_positive("factor")? as f32;
                    inv_freq.iter_mut().for_each(|frequency| *frequency /= factor);
                }
                "llama3" => Llama3::read(config, scaling, context_length)?.apply(&mut inv_freq),
                other => {
                    return Err(scaling.unsupported(
                        key,
                        format!(
                            "rope of type '{}' is not supported for this model_type; default, linear and llama3 are",
                            other.escape_debug()
                        ),
                    ));
                }
            }
        }
        Ok(Self { rotary_dim: head_dim, inv_freq, attention_factor: 1.0, interleaved: false, long: None })
    }
}

/// `theta^(−2i/dim)`, rounded where transformers rounds: exponent, power and reciprocal in single precision.
fn frequencies(theta: f64, dim: usize) -> Vec<f32> {
    let theta = f64::from(theta as f32);
    let pair = |i| {
        let exponent = (2 * i) as f32 / dim as f32;
        // Evaluated in double precision and rounded once, which is the closest any single-precision power comes.
        1.0 / theta.powf(f64::from(exponent)) as f32
    };
    (0..dim / 2).map(pair).collect()
}

/// The scaling of Llama 3.1: frequencies with wavelengths beyond the original context are divided by `factor`, high
/// frequencies stay, and those between are blended. Computed in single precision in the order of operations of
/// `_compute_llama3_parameters` in transformers' `modeling_rope_utils`.
struct Llama3 {
    factor: f32,
    low_freq_factor: f64,
    high_freq_factor: f64,
    original_context: f64,
}

impl Llama3 {
    fn read(config: Fields<'_>, scaling: Fields<'_>, context_length: usize) -> Result<Self> {
        const ORIGINAL: &str = "original_max_position_embeddings";
        let factor = scaling.required_positive("factor")? as f32;
        let low_freq_factor = scaling.required_positive("low_freq_factor")?;
        let high_freq_factor = scaling.required_positive("high_freq_factor")?;
        if high_freq_factor <= low_freq_factor {
            return Err(scaling.wrong(
                "high_freq_factor",
                format!("{high_freq_factor} should be above low_freq_factor, {low_freq_factor}"),
            ));
        }
        // transformers lets the outer field win where both are there.
        let original_context = match config.positive(ORIGINAL)? {
            Some(length) => length,
            None => scaling.positive(ORIGINAL)?.unwrap_or(context_length as f64),
        };
        Ok(Self { factor, low_freq_factor, high_freq_factor, original_context })
    }

    fn apply(&self, inv_freq: &mut [f32]) {
        let low_freq_wavelength = (self.original_context / self.low_freq_factor) as f32;
        let high_freq_wavelength = (self.original_context / self.high_freq_factor) as f32;
        let spread = (self.high_freq_factor - self.low_freq_factor) as f32;
        for frequency in inv_freq {
            // A number divided by a tensor is its reciprocal times the number there.
            let wavelength = (1.0 / *frequency) * std::f64::consts::TAU as f32;
            if wavelength > low_freq_wavelength {
                *frequency /= self.factor;
            } else if wavelength >= high_freq_wavelength {
                let turns = (1.0 / wavelength) * self.original_context as f32;
                let smooth = (turns - self.low_freq_factor as f32) / spread;
                *frequency = (1.0 - smooth) * *frequency / self.factor + smooth * *frequency;
            }
        }
    }
}

#[cfg(test)]
mod tests;
