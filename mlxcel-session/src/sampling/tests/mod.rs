//! The host sampler by itself, beside transformers and llama.cpp, and under random parameters.

mod behaviour;
mod llama;
mod properties;
mod transformers;

use mlxcel_core::{
    Dry, DynamicTemperature, ErrorKind, LogitsSampler, Mirostat, SamplingContext, SamplingParams, TokenId,
    TokenMask, Xtc,
};
use serde::Deserialize;

use super::*;

/// How far float32 arithmetic may lie from ours.
const TOLERANCE: f64 = 1e-5;

/// The parameters of a recorded case; drawn at temperature 1 unless it says otherwise.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Parameters {
    temperature: Option<f32>,
    dynamic_temperature: Option<(f32, f32)>,
    top_n_sigma: Option<f32>,
    top_k: Option<u32>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    typical_p: Option<f32>,
    xtc: Option<(f32, f32)>,
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    penalty_window: Option<u32>,
    no_repeat_ngram: Option<u32>,
    dry: Option<DryParameters>,
    logit_bias: Vec<(TokenId, Option<f32>)>,
    forbidden_tokens: Vec<TokenId>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DryParameters {
    multiplier: f32,
    base: Option<f32>,
    allowed_length: Option<u32>,
    window: Option<u32>,
    #[serde(default)]
    breakers: Vec<TokenId>,
}

impl Parameters {
    fn params(&self, seed: u64) -> SamplingParams {
        let mut params = SamplingParams::greedy().with_temperature(self.temperature.unwrap_or(1.0));
        params.dynamic_temperature = self
            .dynamic_temperature
            .map(|(range, exponent)| DynamicTemperature::new(range).with_exponent(exponent));
        params.top_n_sigma = self.top_n_sigma;
        params.top_k = self.top_k;
        params.top_p = self.top_p;
        params.min_p = self.min_p;
        params.typical_p = self.typical_p;
        params.xtc = self.xtc.map(|(probability, threshold)| Xtc::new(probability, threshold));
        params.repetition_penalty = self.repetition_penalty;
        params.presence_penalty = self.presence_penalty;
        params.frequency_penalty = self.frequency_penalty;
        params.penalty_window = self.penalty_window;
        params.no_repeat_ngram = self.no_repeat_ngram;
        params.dry = self.dry.as_ref().map(|given| {
            let mut dry = Dry::new(given.multiplier).with_breakers(given.breakers.clone());
            dry.base = given.base.unwrap_or(dry.base);
            dry.allowed_length = given.allowed_length.unwrap_or(dry.allowed_length);
            dry.window = given.window;
            dry
        });
        params.logit_bias =
            self.logit_bias.iter().map(|&(token, bias)| (token, bias.unwrap_or(f32::NEG_INFINITY))).collect();
        params.forbidden_tokens.clone_from(&self.forbidden_tokens);
        params.with_seed(seed)
    }

    fn sampler(&self, seed: u64) -> HostSampler {
        HostSampler::new(self.params(seed)).unwrap()
    }
}

/// Fails unless `found` are the tokens that have a probability in `expected`, and nearly these.
fn assert_probabilities(found: &[(TokenId, f64)], expected: &[Option<f64>], name: &str) {
    let expected: Vec<(TokenId, f64)> =
        (0..).zip(expected).filter_map(|(token, p)| p.map(|p| (token, p))).collect();
    let tokens = |list: &[(TokenId, f64)]| list.iter().map(|&(token, _)| token).collect::<Vec<_>>();
    assert_eq!(tokens(found), tokens(&expected), "{name}");
    for (&(token, found), &(_, expected)) in found.iter().zip(&expected) {
        assert!((found - expected).abs() < TOLERANCE, "{name}: token {token} has {found}, not {expected}");
    }
}
