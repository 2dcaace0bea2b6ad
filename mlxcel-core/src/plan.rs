//! Sampling plans: whether the engine or the host applies the parameters.

use std::fmt;
use std::sync::Arc;

use crate::capabilities::Capabilities;
use crate::error::{Error, Result};
use crate::sampling::{SamplingFields, SamplingParams};

/// Where a token is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SamplingPlace {
    /// The engine, on its device: [`Answer::Token`](crate::Answer::Token).
    Device,
    /// The application's sampler, from [`Answer::Logits`](crate::Answer::Logits).
    Host,
}

/// Requirements on sampling besides [`SamplingParams`]; none by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct SamplingNeeds {
    /// A [`TokenMask`](crate::TokenMask) that changes from token to token.
    pub mask: bool,
    /// How many of the most likely tokens are reported with each token.
    pub top: u16,
    /// The application has custom sampling steps, which only the host can run.
    pub steps: bool,
}

impl SamplingNeeds {
    setters! {
        /// Sets whether tokens are masked.
        with_mask(needed: bool) => mask = needed;
        /// Sets how many of the most likely tokens are reported.
        with_top(most: u16) => top = most;
        /// Sets whether the application has custom steps.
        with_steps(needed: bool) => steps = needed;
    }
}

/// [`SamplingParams`] and where they are applied, decided before the run.
///
/// ```
/// use mlxcel_core::{Capabilities, SamplingParams, SamplingPlace, SamplingPlan};
///
/// let engine = Capabilities::new(1, 1024).with_logits(true);
/// let params = SamplingParams::greedy();
/// assert_eq!(SamplingPlan::negotiate(&params, &engine)?.place(), SamplingPlace::Device);
/// let plan = SamplingPlan::negotiate(&params.with_temperature(0.7), &engine)?;
/// assert_eq!(plan.to_string(), "temperature on the host");
/// # Ok::<(), mlxcel_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingPlan {
    /// Shared, since engines keep a plan with each row.
    params: Arc<SamplingParams>,
    place: SamplingPlace,
    prompt_length: usize,
}

impl SamplingPlan {
    /// Greedy decoding by the engine, which every engine supports.
    pub fn greedy() -> Self {
        Self { params: Arc::new(SamplingParams::greedy()), place: SamplingPlace::Device, prompt_length: 0 }
    }

    /// Decides where `params` are applied for an engine with `capabilities`: on the device if the engine
    /// claims every active field, else on the host if it claims logits.
    ///
    /// All fields are applied in one place, since each builds on the result of the previous one.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for a value out of range,
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for the first field that neither can apply;
    /// both name the field.
    pub fn negotiate(params: &SamplingParams, capabilities: &Capabilities) -> Result<Self> {
        Self::negotiate_for(params, SamplingNeeds::default(), capabilities)
    }

    /// As [`negotiate`](Self::negotiate), with additional requirements. If the engine does not claim one of
    /// them, the host samples.
    ///
    /// # Errors
    ///
    /// The errors of [`negotiate`](Self::negotiate); the field is `mask`, `top_logprobs` or `steps` for what
    /// is in `needs`.
    pub fn negotiate_for(
        params: &SamplingParams,
        needs: SamplingNeeds,
        capabilities: &Capabilities,
    ) -> Result<Self> {
        params.validate()?;
        let field = params.active_fields().iter().find(|&field| !capabilities.sampling.contains(field));
        let missing = match field {
            Some(field) => Some(field.as_str()),
            None if needs.steps => Some("steps"),
            None if needs.mask && !capabilities.token_masks => Some("mask"),
            None if needs.top > capabilities.top_logprobs => Some("top_logprobs"),
            None => None,
        };
        let place = match missing {
            None => SamplingPlace::Device,
            Some(_) if capabilities.logits => SamplingPlace::Host,
            Some(field) => {
                return Err(Error::unsupported(
                    "negotiate sampling",
                    "the engine does not support this, and returns no logits for sampling on the host",
                )
                .with_context("field", field));
            }
        };
        Ok(Self { params: Arc::new(params.clone()), place, prompt_length: 0 })
    }

    setters! {
        /// Sets how many of the sequence's first tokens are the prompt, which the presence and frequency
        /// penalties ignore. Defaults to 0. [`TokenStream`](crate::TokenStream) sets it in its own plan.
        with_prompt_length(tokens: usize) => prompt_length = tokens;
    }

    /// How many of the sequence's first tokens are the prompt.
    pub fn prompt_length(&self) -> usize {
        self.prompt_length
    }

    /// The parameters.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Where a token is sampled.
    pub fn place(&self) -> SamplingPlace {
        self.place
    }

    /// Whether this is plain greedy decoding.
    pub fn is_greedy(&self) -> bool {
        self.params.active_fields() == SamplingFields::NONE
    }
}

impl fmt::Display for SamplingPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match self.place {
            SamplingPlace::Device => "on the device",
            SamplingPlace::Host => "on the host",
        };
        if self.is_greedy() {
            return write!(f, "greedy {place}");
        }
        write!(f, "{} {place}", self.params.active_fields())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::sampling::SamplingField;

    #[test]
    fn an_unsupported_sampling_field_is_named() {
        let params = SamplingParams::greedy().with_temperature(1.0).with_min_p(0.1);
        let engine =
            Capabilities::new(1, 8).with_sampling(SamplingFields::from([SamplingField::Temperature]));
        let error = SamplingPlan::negotiate(&params, &engine).unwrap_err();
        assert_eq!((error.kind(), error.context("field")), (ErrorKind::Unsupported, Some("min_p")));
    }

    #[test]
    fn a_plan_says_what_it_does() {
        let device = Capabilities::new(1, 8).with_logits(true);
        let plan = |params: &SamplingParams| SamplingPlan::negotiate(params, &device).unwrap();
        let greedy = plan(&SamplingParams::greedy());
        assert!(greedy.is_greedy());
        assert_eq!(greedy.to_string(), "greedy on the device");
        let drawn = plan(&SamplingParams::greedy().with_temperature(0.5).with_top_k(3)).with_prompt_length(7);
        assert!(!drawn.is_greedy());
        assert_eq!(drawn.to_string(), "temperature, top_k on the host");
        assert_eq!((greedy.prompt_length(), drawn.prompt_length()), (0, 7));
    }

    #[test]
    fn the_host_samples_what_the_engine_does_not_claim() {
        let none = SamplingNeeds::default();
        let device = Capabilities::new(1, 8).with_token_masks(true).with_top_logprobs(4);
        for (needs, lacking, field) in [
            (none.with_mask(true), device.clone().with_token_masks(false), "mask"),
            (none.with_top(4), device.clone().with_top_logprobs(3), "top_logprobs"),
            (none.with_steps(true), device.clone(), "steps"),
        ] {
            let place = |needs, engine: &Capabilities| {
                SamplingPlan::negotiate_for(&SamplingParams::greedy(), needs, engine).map(|plan| plan.place())
            };
            assert_eq!(place(none, &lacking).unwrap(), SamplingPlace::Device, "{field}");
            let error = place(needs, &lacking).unwrap_err();
            assert_eq!((error.kind(), error.context("field")), (ErrorKind::Unsupported, Some(field)));
            assert_eq!(place(needs, &lacking.with_logits(true)).unwrap(), SamplingPlace::Host, "{field}");
            if !needs.steps {
                assert_eq!(place(needs, &device).unwrap(), SamplingPlace::Device, "{field}");
            }
        }
    }
}
