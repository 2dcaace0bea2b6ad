//! Validation of sampling parameters.

use std::fmt;

use super::SamplingParams;
use crate::{Error, ErrorKind, Result};

impl SamplingParams {
    /// Checks that all values are in range.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] that names the field and its value; fields of groups as `dry_base`.
    pub fn validate(&self) -> Result<()> {
        let finite = |value: f32| value.is_finite();
        let positive = |value: f32| value.is_finite() && value > 0.0;
        let not_negative = |value: f32| value.is_finite() && value >= 0.0;
        let probability = |value: f32| (0.0..=1.0).contains(&value);
        let mass = |value: f32| value > 0.0 && value <= 1.0;
        const FINITE: &str = "it must be a finite number";
        const POSITIVE: &str = "it must be finite and above 0";
        const NOT_NEGATIVE: &str = "it must be a finite number of at least 0";
        const PROBABILITY: &str = "it must be from 0 to 1";
        const MASS: &str = "it must be above 0 and at most 1";
        const ONE: &str = "it must be at least 1";

        check("temperature", Some(self.temperature), NOT_NEGATIVE, not_negative)?;
        let dynamic = self.dynamic_temperature;
        check("dynamic_temperature_range", dynamic.map(|t| t.range), NOT_NEGATIVE, not_negative)?;
        check("dynamic_temperature_exponent", dynamic.map(|t| t.exponent), POSITIVE, positive)?;
        check("top_n_sigma", self.top_n_sigma, POSITIVE, positive)?;
        check("top_k", self.top_k, ONE, |k| k >= 1)?;
        check("top_p", self.top_p, MASS, mass)?;
        check("min_p", self.min_p, PROBABILITY, probability)?;
        check("typical_p", self.typical_p, MASS, mass)?;
        check("xtc_probability", self.xtc.map(|xtc| xtc.probability), PROBABILITY, probability)?;
        check("xtc_threshold", self.xtc.map(|xtc| xtc.threshold), PROBABILITY, probability)?;
        check("mirostat_tau", self.mirostat.map(|m| m.tau), POSITIVE, positive)?;
        check("mirostat_eta", self.mirostat.map(|m| m.eta), POSITIVE, positive)?;
        check("repetition_penalty", self.repetition_penalty, POSITIVE, positive)?;
        check("presence_penalty", self.presence_penalty, FINITE, finite)?;
        check("frequency_penalty", self.frequency_penalty, FINITE, finite)?;
        check("no_repeat_ngram", self.no_repeat_ngram, ONE, |n| n >= 1)?;
        if let Some(dry) = &self.dry {
            check("dry_multiplier", Some(dry.multiplier), NOT_NEGATIVE, not_negative)?;
            check("dry_base", Some(dry.base), "it must be a finite number of at least 1", |base| {
                finite(base) && base >= 1.0
            })?;
            check("dry_allowed_length", Some(dry.allowed_length), ONE, |length| length >= 1)?;
        }
        for (_, bias) in &self.logit_bias {
            check("logit_bias", Some(*bias), "it must be a number", |bias| !bias.is_nan())?;
        }
        let allowed = self.allowed_tokens.as_ref().map(Vec::len);
        check("allowed_tokens", allowed, "at least one token must be allowed", |tokens| tokens >= 1)
    }
}

fn check<T: Copy + fmt::Display>(
    field: &'static str,
    value: Option<T>,
    range: &'static str,
    valid: impl Fn(T) -> bool,
) -> Result<()> {
    match value {
        Some(value) if !valid(value) => {
            Err(Error::new(ErrorKind::InvalidInput, "check sampling parameters", range)
                .with_context("field", field)
                .with_context("value", value))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dry, DynamicTemperature, Mirostat, Xtc};

    #[test]
    fn out_of_range_values_are_rejected_by_field() {
        let dynamic = DynamicTemperature::new;
        for (change, field) in [
            ((|p| p.with_temperature(f32::NAN)) as fn(SamplingParams) -> SamplingParams, "temperature"),
            (|p| p.with_dynamic_temperature(DynamicTemperature::new(-1.0)), "dynamic_temperature_range"),
            (
                |p| p.with_dynamic_temperature(DynamicTemperature::new(1.0).with_exponent(0.0)),
                "dynamic_temperature_exponent",
            ),
            (|p| p.with_top_n_sigma(0.0), "top_n_sigma"),
            (|p| p.with_top_k(0), "top_k"),
            (|p| p.with_top_p(1.5), "top_p"),
            (|p| p.with_min_p(-0.1), "min_p"),
            (|p| p.with_typical_p(0.0), "typical_p"),
            (|p| p.with_xtc(Xtc::new(1.5, 0.1)), "xtc_probability"),
            (|p| p.with_xtc(Xtc::new(0.5, f32::NAN)), "xtc_threshold"),
            (|p| p.with_mirostat(Mirostat::new(0.0, 0.1)), "mirostat_tau"),
            (|p| p.with_mirostat(Mirostat::new(5.0, f32::INFINITY)), "mirostat_eta"),
            (|p| p.with_repetition_penalty(0.0), "repetition_penalty"),
            (|p| p.with_presence_penalty(f32::INFINITY), "presence_penalty"),
            (|p| p.with_frequency_penalty(f32::NAN), "frequency_penalty"),
            (|p| p.with_no_repeat_ngram(0), "no_repeat_ngram"),
            (|p| p.with_dry(Dry::new(-1.0)), "dry_multiplier"),
            (|p| p.with_dry(Dry::new(1.0).with_base(0.5)), "dry_base"),
            (|p| p.with_dry(Dry::new(1.0).with_allowed_length(0)), "dry_allowed_length"),
            (|p| p.with_logit_bias([(0, f32::NAN)]), "logit_bias"),
            (|p| p.with_allowed_tokens([]), "allowed_tokens"),
        ] {
            let error = change(SamplingParams::greedy()).validate().unwrap_err();
            assert_eq!((error.kind(), error.context("field")), (ErrorKind::InvalidInput, Some(field)));
        }
        let widest = SamplingParams::greedy()
            .with_dynamic_temperature(dynamic(0.0))
            .with_min_p(0.0)
            .with_top_p(1.0)
            .with_typical_p(1.0)
            .with_xtc(Xtc::new(0.0, 1.0))
            .with_dry(Dry::new(0.0).with_base(1.0));
        widest.with_penalty_window(0).validate().unwrap();
    }
}
