//! Llama 3.1's frequency scaling.

use mlxcel_core::Result;

use crate::config::Fields;

/// Frequencies with wavelengths beyond the original context are divided by `factor`, high frequencies stay,
/// and those between are blended. Computed in single precision in the order of operations of
/// `_compute_llama3_parameters` in transformers' `modeling_rope_utils`.
pub(crate) struct Llama3 {
    pub(crate) factor: f32,
    pub(crate) low_freq_factor: f64,
    pub(crate) high_freq_factor: f64,
    pub(crate) original_context: f64,
}

impl Llama3 {
    pub(super) fn read(scaling: Fields<'_>, original_context: f64) -> Result<Self> {
        let factor = scaling.required_positive("factor")? as f32;
        let low_freq_factor = scaling.required_positive("low_freq_factor")?;
        let high_freq_factor = scaling.required_positive("high_freq_factor")?;
        if high_freq_factor < low_freq_factor {
            return Err(scaling.wrong(
                "high_freq_factor",
                format!("{high_freq_factor} should be at least low_freq_factor, {low_freq_factor}"),
            ));
        }
        Ok(Self { factor, low_freq_factor, high_freq_factor, original_context })
    }

    pub(super) fn apply(&self, inv_freq: &mut [f32]) {
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
