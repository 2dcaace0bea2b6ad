//! Builder methods of the sampling parameters.

use std::sync::Arc;

use mlxcel_core::{Dry, DynamicTemperature, Mirostat, SamplingParams, TokenId, Xtc};

use crate::{Options, SamplingStep};

/// Declares builders that forward to those of [`SamplingParams`].
macro_rules! builders {
    ($($name:ident($value:ident: $type:ty) $field:ident)*) => {
        impl Options {
            $(
                #[doc = concat!("Sets [`SamplingParams::", stringify!($field), "`].")]
                #[must_use]
                pub fn $name(mut self, $value: $type) -> Self {
                    self.sampling = self.sampling.$name($value);
                    self
                }
            )*
        }
    };
}

builders! {
    with_temperature(temperature: f32) temperature
    with_dynamic_temperature(dynamic: DynamicTemperature) dynamic_temperature
    with_top_n_sigma(n: f32) top_n_sigma
    with_top_k(k: u32) top_k
    with_top_p(p: f32) top_p
    with_min_p(p: f32) min_p
    with_typical_p(p: f32) typical_p
    with_xtc(xtc: Xtc) xtc
    with_mirostat(mirostat: Mirostat) mirostat
    with_repetition_penalty(penalty: f32) repetition_penalty
    with_presence_penalty(penalty: f32) presence_penalty
    with_frequency_penalty(penalty: f32) frequency_penalty
    with_penalty_window(tokens: u32) penalty_window
    with_no_repeat_ngram(n: u32) no_repeat_ngram
    with_dry(dry: Dry) dry
    with_logit_bias(biases: impl Into<Vec<(TokenId, f32)>>) logit_bias
    with_allowed_tokens(tokens: impl Into<Vec<TokenId>>) allowed_tokens
    with_forbidden_tokens(tokens: impl Into<Vec<TokenId>>) forbidden_tokens
    with_seed(seed: u64) seed
}

impl Options {
    /// Sets all sampling parameters; custom steps are kept.
    #[must_use]
    pub fn with_sampling(mut self, sampling: SamplingParams) -> Self {
        self.sampling = sampling;
        self
    }

    /// Sets a random seed, so that sampled text differs from run to run; see [`SamplingParams::with_random_seed`].
    #[must_use]
    pub fn with_random_seed(mut self) -> Self {
        self.sampling = self.sampling.with_random_seed();
        self
    }

    /// Adds a custom sampling step. Tokens are then sampled on the host.
    #[must_use]
    pub fn with_step(mut self, step: Arc<dyn SamplingStep>) -> Self {
        self.steps.push(step);
        self
    }
}
