//! The numbers of the sampling parameters, by name, and their ranges.

use super::{SamplingField, SamplingParams};
use crate::error::{Error, ErrorKind, Result};

/// A number of [`SamplingParams`] that programs set by name: an argument of a command line, a field of a
/// request or a file.
///
/// ```
/// use mlxcel_core::{SamplingNumber, SamplingParams};
///
/// let mut params = SamplingParams::greedy();
/// for (name, value) in [("temperature", 0.7), ("xtc_probability", 0.5), ("xtc_threshold", 0.2)] {
///     let number = SamplingNumber::ALL.iter().find(|number| number.name() == name);
///     number.map(|number| number.set(&mut params, Some(value))).transpose()?;
/// }
/// assert_eq!(params.active_fields().to_string(), "temperature, xtc");
/// # Ok::<(), mlxcel_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SamplingNumber {
    pub(super) name: &'static str,
    pub(super) field: SamplingField,
    /// Empty if it is the field's own.
    pub(super) about: &'static str,
    pub(super) range: &'static Range,
    /// Makes the group of this number, if it is the first of one.
    pub(super) begin: fn(&mut SamplingParams),
    /// Where it is; none in a group that is not there.
    pub(super) at: fn(&mut SamplingParams) -> Option<&mut dyn Number>,
}

impl SamplingNumber {
    /// The name: the field's, or for a member of a group a name such as `xtc_threshold`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What it does, in a few sentences.
    pub fn about(&self) -> &'static str {
        if self.about.is_empty() { self.field.about().trim() } else { self.about.trim() }
    }

    /// Whether it is a whole number from 0 to [`u32::MAX`]; otherwise it is a float32.
    pub fn is_whole(&self) -> bool {
        self.range.whole
    }

    /// Whether `value` is in range.
    pub fn allows(&self, value: f64) -> bool {
        (self.range.allows)(value)
    }

    /// Whether `value` disables a whole number where files and servers use 0 or -1 for that.
    pub fn is_off(&self, value: f64) -> bool {
        self.is_whole() && (value < 0.0 || value == 0.0 && !self.allows(0.0))
    }

    /// The number that has to be set before this one, if it only changes a group that another one enables.
    pub fn requires(&self) -> Option<&'static Self> {
        Self::ALL.iter().find(|number| number.field == self.field).filter(|first| first.name != self.name)
    }

    /// Its value once its group is enabled; `None` if it has none.
    pub fn default(&self) -> Option<f64> {
        let mut params = SamplingParams::greedy();
        (self.requires()?.begin)(&mut params);
        (self.at)(&mut params)?.get()
    }

    /// Sets it in `params`, or removes it for `None`. Ranges are checked by [`SamplingParams::validate`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] that names both if the number that it [requires](Self::requires) is not
    /// set.
    pub fn set(&self, params: &mut SamplingParams, value: Option<f64>) -> Result<()> {
        (self.begin)(params);
        match ((self.at)(params), self.requires()) {
            (Some(place), _) => place.set(value),
            (None, required) => {
                let message = "this number needs another one that enables it";
                let error = Error::new(ErrorKind::InvalidInput, "set sampling parameters", message);
                return Err(error
                    .with_context("field", self.name)
                    .with_context("needs", required.map_or("", |required| required.name)));
            }
        }
        Ok(())
    }
}

/// A place that holds a number.
pub(super) trait Number {
    fn get(&self) -> Option<f64>;
    fn set(&mut self, value: Option<f64>);
}

macro_rules! numbers {
    ($($type:ty)*) => {$(
        impl Number for $type {
            fn get(&self) -> Option<f64> {
                Some(f64::from(*self))
            }

            fn set(&mut self, value: Option<f64>) {
                *self = value.map_or(<$type>::default(), |value| value as $type);
            }
        }

        impl Number for Option<$type> {
            fn get(&self) -> Option<f64> {
                self.map(f64::from)
            }

            fn set(&mut self, value: Option<f64>) {
                *self = value.map(|value| value as $type);
            }
        }
    )*};
}
numbers! { f32 u32 }

/// The values that a number may have.
#[derive(Debug)]
pub(super) struct Range {
    words: &'static str,
    whole: bool,
    allows: fn(f64) -> bool,
}

macro_rules! ranges {
    ($($name:ident = $words:literal, $whole:literal, $allows:expr;)*) => {$(
        pub(super) const $name: Range = Range { words: $words, whole: $whole, allows: $allows };
    )*};
}

ranges! {
    FINITE = "it must be a finite number", false, f64::is_finite;
    POSITIVE = "it must be finite and above 0", false, |value| value.is_finite() && value > 0.0;
    NOT_NEGATIVE = "it must be a finite number of at least 0", false, |value| value.is_finite() && value >= 0.0;
    GROWTH = "it must be a finite number of at least 1", false, |value| value.is_finite() && value >= 1.0;
    PROBABILITY = "it must be from 0 to 1", false, |value| (0.0..=1.0).contains(&value);
    MASS = "it must be above 0 and at most 1", false, |value| value > 0.0 && value <= 1.0;
    COUNT = "it must be at least 1", true, |value| value >= 1.0;
    WINDOW = "it must be at least 0", true, |value| value >= 0.0;
}

impl SamplingParams {
    /// Checks that all values are in range.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] that names the field and its value; members of groups as `dry_base`.
    pub fn validate(&self) -> Result<()> {
        let refuse = |field: &'static str, value: &dyn std::fmt::Display, range| {
            Err(Error::new(ErrorKind::InvalidInput, "check sampling parameters", range)
                .with_context("field", field)
                .with_context("value", value))
        };
        // Places are of mutable parameters.
        let mut params = self.clone();
        for number in SamplingNumber::ALL {
            let value = (number.at)(&mut params).and_then(|place| place.get());
            if let Some(value) = value.filter(|&value| !number.allows(value)) {
                return refuse(number.name, &(value as f32), number.range.words);
            }
        }
        if let Some((_, bias)) = self.logit_bias.iter().find(|(_, bias)| bias.is_nan()) {
            return refuse("logit_bias", bias, "it must be a number");
        }
        if self.allowed_tokens.as_ref().is_some_and(Vec::is_empty) {
            return refuse("allowed_tokens", &0, "at least one token must be allowed");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::{Dry, DynamicTemperature, Mirostat, SamplingFields, Xtc};

    #[test]
    fn out_of_range_values_are_rejected_by_field() {
        let dynamic = DynamicTemperature::new;
        for (change, field) in [
            ((|p| p.with_temperature(f32::NAN)) as fn(SamplingParams) -> SamplingParams, "temperature"),
            (|p| p.with_dynamic_temperature(DynamicTemperature::new(-1.0)), "dynamic_temperature"),
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

    #[test]
    fn whole_numbers_are_off_where_they_cannot_be() {
        let number = |name: &str| SamplingNumber::ALL.iter().find(|number| number.name() == name).unwrap();
        // The name, whether it is whole, and whether -1, 0 and 1 disable it.
        for (name, whole, off) in [
            ("top_k", true, [true, true, false]),
            ("penalty_window", true, [true, false, false]),
            ("top_p", false, [false, false, false]),
        ] {
            let number = number(name);
            assert_eq!(number.is_whole(), whole, "{name}");
            assert_eq!([-1.0, 0.0, 1.0].map(|value| number.is_off(value)), off, "{name}");
        }
        assert_eq!(number("mirostat_eta").default(), Some(f64::from(0.1f32)));
        assert_eq!(number("top_k").default(), None);
        assert!(number("top_k").about().contains("likel"), "{}", number("top_k").about());
    }

    #[test]
    fn a_window_alone_penalizes_nothing() {
        let window = SamplingParams::greedy().with_penalty_window(4);
        assert_eq!(window.active_fields(), SamplingFields::NONE);
        for penalized in [
            window.clone().with_repetition_penalty(1.1),
            window.clone().with_presence_penalty(0.1),
            window.clone().with_frequency_penalty(0.1),
        ] {
            assert!(penalized.active_fields().contains(SamplingField::PenaltyWindow));
        }
    }

    #[test]
    fn every_number_is_set_by_its_name() {
        for number in SamplingNumber::ALL {
            let mut params = SamplingParams::greedy();
            let before = params.clone();
            if let Some(required) = number.requires() {
                let error = number.set(&mut params, Some(0.5)).unwrap_err();
                assert_eq!(error.context("needs"), Some(required.name()), "{}", number.name());
                required.set(&mut params, Some(0.5)).unwrap();
                assert!(number.default().is_some() || number.name() == "dry_window");
            }
            number.set(&mut params, Some(1.0)).unwrap();
            assert_ne!(params, before, "{}", number.name());
            params.validate().unwrap();
            assert!(!number.about().is_empty() && !number.is_off(1.0));
        }
    }

    #[test]
    fn random_seeds_differ() {
        let seed = || SamplingParams::greedy().with_random_seed().seed;
        let seeds: std::collections::HashSet<u64> = (0..16).map(|_| seed()).collect();
        assert_eq!(seeds.len(), 16);
    }
}
