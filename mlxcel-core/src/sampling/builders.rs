//! Builder methods.

use std::hash::{BuildHasher, Hasher};

use super::{Dry, DynamicTemperature, Mirostat, SamplingParams, Xtc};
use crate::TokenId;

/// Declares a builder for each field that is simply set.
macro_rules! builders {
    ($($name:ident: $field:ident = $value:ident: $type:ty => $set:expr;)*) => {
        impl SamplingParams {
            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](Self::", stringify!($field), ").")]
                #[must_use]
                pub fn $name(mut self, $value: $type) -> Self {
                    self.$field = $set;
                    self
                }
            )*
        }
    };
}

builders! {
    with_temperature: temperature = temperature: f32 => temperature;
    with_dynamic_temperature: dynamic_temperature = dynamic: DynamicTemperature => Some(dynamic);
    with_top_n_sigma: top_n_sigma = n: f32 => Some(n);
    with_top_k: top_k = k: u32 => Some(k);
    with_top_p: top_p = p: f32 => Some(p);
    with_min_p: min_p = p: f32 => Some(p);
    with_typical_p: typical_p = p: f32 => Some(p);
    with_xtc: xtc = xtc: Xtc => Some(xtc);
    with_mirostat: mirostat = mirostat: Mirostat => Some(mirostat);
    with_repetition_penalty: repetition_penalty = penalty: f32 => Some(penalty);
    with_presence_penalty: presence_penalty = penalty: f32 => Some(penalty);
    with_frequency_penalty: frequency_penalty = penalty: f32 => Some(penalty);
    with_penalty_window: penalty_window = tokens: u32 => Some(tokens);
    with_no_repeat_ngram: no_repeat_ngram = n: u32 => Some(n);
    with_dry: dry = dry: Dry => Some(dry);
    with_logit_bias: logit_bias = biases: impl Into<Vec<(TokenId, f32)>> => biases.into();
    with_allowed_tokens: allowed_tokens = tokens: impl Into<Vec<TokenId>> => Some(tokens.into());
    with_forbidden_tokens: forbidden_tokens = tokens: impl Into<Vec<TokenId>> => tokens.into();
    with_seed: seed = seed: u64 => seed;
}

impl SamplingParams {
    /// Sets [`seed`](Self::seed) to a different number at each call, so that sampled text differs from run to run. Read
    /// the field to reproduce a text.
    #[must_use]
    pub fn with_random_seed(self) -> Self {
        // The standard library's keys for hash maps are random.
        let seed = std::collections::hash_map::RandomState::new().build_hasher().finish();
        self.with_seed(seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_seeds_differ() {
        let seed = || SamplingParams::greedy().with_random_seed().seed;
        let seeds: std::collections::HashSet<u64> = (0..16).map(|_| seed()).collect();
        assert_eq!(seeds.len(), 16);
    }
}
