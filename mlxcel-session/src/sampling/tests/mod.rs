//! The host sampler by itself, beside transformers and llama.cpp, and under random parameters.

mod behaviour;
mod llama;
mod properties;
mod transformers;

use std::collections::BTreeMap;

use mlxcel_core::{
    Dry, DynamicTemperature, ErrorKind, LogitsSampler, Mirostat, SamplingContext, SamplingNumber,
    SamplingParams, TokenId, TokenMask, Xtc,
};
use serde::Deserialize;

use super::*;

/// How far float32 arithmetic may lie from ours.
const TOLERANCE: f64 = 1e-5;

/// The parameters of a recorded case; drawn at temperature 1 unless it says otherwise.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Parameters {
    dynamic_temperature: Option<(f32, f32)>,
    xtc: Option<(f32, f32)>,
    dry: Option<DryParameters>,
    logit_bias: Vec<(TokenId, Option<f32>)>,
    forbidden_tokens: Vec<TokenId>,
    /// The others by their names.
    #[serde(flatten)]
    numbers: BTreeMap<String, f64>,
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
        let mut params = SamplingParams::greedy().with_temperature(1.0).with_seed(seed);
        for (name, &value) in &self.numbers {
            let number = SamplingNumber::ALL.iter().find(|number| number.name() == name).unwrap();
            number.set(&mut params, Some(value)).unwrap();
        }
        params.dynamic_temperature = self
            .dynamic_temperature
            .map(|(range, exponent)| DynamicTemperature::new(range).with_exponent(exponent));
        params.xtc = self.xtc.map(|(probability, threshold)| Xtc::new(probability, threshold));
        params.dry = self.dry.as_ref().map(|given| {
            let mut dry = Dry::new(given.multiplier).with_breakers(given.breakers.clone());
            dry.base = given.base.unwrap_or(dry.base);
            dry.allowed_length = given.allowed_length.unwrap_or(dry.allowed_length);
            dry.window = given.window;
            dry
        });
        params.logit_bias =
            self.logit_bias.iter().map(|&(token, bias)| (token, bias.unwrap_or(f32::NEG_INFINITY))).collect();
        params.with_forbidden_tokens(self.forbidden_tokens.clone())
    }

    fn sampler(&self, seed: u64) -> HostSampler {
        HostSampler::new(self.params(seed)).unwrap()
    }
}

/// What another implementation made of logits.
#[derive(Deserialize)]
struct Fixture {
    vectors: Vec<Vector>,
    cases: Vec<Case>,
    /// Those of steps that engines do not apply on their devices.
    #[serde(default)]
    host_cases: Vec<Case>,
    mirostat: Option<llama::MirostatRun>,
}

#[derive(Deserialize)]
struct Vector {
    logits: Vec<f32>,
    tokens: Vec<TokenId>,
    #[serde(default)]
    prompt_length: usize,
}

impl Vector {
    fn context(&self) -> SamplingContext<'_> {
        SamplingContext::new(&self.tokens, self.prompt_length)
    }
}

#[derive(Deserialize)]
struct Case {
    parameters: Parameters,
    vector: usize,
    /// The classes that transformers ran.
    #[serde(default)]
    order: Vec<String>,
    /// After bias and penalties; none is minus infinity.
    #[serde(default)]
    processed: Vec<Option<f64>>,
    /// After all; none for a token that may not be drawn.
    probabilities: Vec<Option<f64>>,
}

impl Fixture {
    /// Calls `check` with each case, its vector, and words that name both.
    fn for_each_case(&self, check: impl Fn(&Case, &Vector, &str)) {
        for case in self.cases.iter().chain(&self.host_cases) {
            let name = format!("{:?}, vector {}, {:?}", case.parameters, case.vector, case.order);
            check(case, &self.vectors[case.vector], &name);
        }
    }

    fn assert_distributions(&self) {
        self.for_each_case(|case, vector, name| {
            let found = case.parameters.sampler(0).distribution(&vector.logits, &vector.context()).unwrap();
            assert_probabilities(&found, &case.probabilities, name);
        });
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
