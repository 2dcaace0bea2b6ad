//! Device sampling compared with the logits processors of transformers, whose results mlxcel-session's tests
//! recorded.

use std::path::Path;

use mlxcel_core::{Capabilities, SamplingPlan, TokenId, TokenMask};
use serde::Deserialize;

use super::*;

/// The allowed error of a float32 sum.
const TOLERANCE: f64 = 1e-5;

#[derive(Deserialize)]
struct Fixture {
    vectors: Vec<Vector>,
    cases: Vec<Case>,
}

/// Logits, and the tokens of the sequence before them.
#[derive(Deserialize)]
struct Vector {
    logits: Vec<f32>,
    tokens: Vec<TokenId>,
    prompt_length: usize,
}

#[derive(Deserialize)]
struct Case {
    parameters: Parameters,
    vector: usize,
    /// After bias and penalties; null is minus infinity.
    processed: Vec<Option<f64>>,
    /// After all filters; null for tokens that may not be drawn.
    probabilities: Vec<Option<f64>>,
}

#[derive(Debug, Deserialize)]
struct Parameters {
    temperature: Option<f32>,
    top_k: Option<u32>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    #[serde(default)]
    logit_bias: Vec<(TokenId, Option<f32>)>,
}

impl Parameters {
    fn params(&self, seed: u64) -> SamplingParams {
        let mut params = SamplingParams::greedy();
        params.temperature = self.temperature.unwrap_or(1.0);
        params.top_k = self.top_k;
        params.top_p = self.top_p;
        params.min_p = self.min_p;
        params.repetition_penalty = self.repetition_penalty;
        params.presence_penalty = self.presence_penalty;
        params.frequency_penalty = self.frequency_penalty;
        params.logit_bias =
            self.logit_bias.iter().map(|&(token, bias)| (token, bias.unwrap_or(f32::NEG_INFINITY))).collect();
        params.seed = seed;
        params
    }
}

fn fixture() -> Fixture {
    let path = "../mlxcel-session/tests/fixtures/transformers_sampling.json";
    let text = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn plan(params: &SamplingParams) -> SamplingPlan {
    let engine = Capabilities::new(1, 1).with_sampling(SamplingField::ALL.iter().copied().collect());
    SamplingPlan::negotiate(params, &engine).unwrap()
}

fn choice(params: &SamplingParams, vector: &Vector) -> Choice {
    let plan = plan(params).with_prompt_length(vector.prompt_length);
    let history = crate::engine::rows::history(&plan, &vector.tokens, &[]);
    Choice { plan, mask: None, top: 0, history }
}

fn chosen(vector: &Vector, choice: &Choice) -> TokenId {
    let logits = Array::from_slice(&vector.logits, &[vector.logits.len()]).unwrap();
    let counted = Counted::new(&choice.history, vector.logits.len()).unwrap();
    choose(&logits, choice, counted.as_ref(), vector.tokens.len()).unwrap().to_vec().unwrap()[0]
}

#[test]
fn a_draw_is_where_the_uniform_number_falls_in_the_distribution_of_transformers() {
    let Fixture { vectors, cases } = fixture();
    for case in &cases {
        let vector = &vectors[case.vector];
        for seed in 0..8 {
            let params = case.parameters.params(seed);
            let drawn = chosen(vector, &choice(&params, vector)) as usize;
            let name = format!("{:?}, vector {}: {drawn}", case.parameters, case.vector);
            let probability = |token: usize| case.probabilities[token].unwrap_or(0.0);
            assert!(probability(drawn) > 0.0, "{name} may not be drawn");
            let below: f64 = (0..drawn).map(probability).sum();
            let uniform = f64::from(uniform(seed, vector.tokens.len()));
            assert!(
                below - TOLERANCE < uniform && uniform < below + probability(drawn) + TOLERANCE,
                "{name}: {uniform} is not in {below}..{}",
                below + probability(drawn)
            );
        }
    }
}

#[test]
fn greedy_decoding_takes_the_argmax_of_transformers_logits() {
    let Fixture { vectors, cases } = fixture();
    for case in &cases {
        let mut params = case.parameters.params(0);
        params.temperature = 0.0;
        let vector = &vectors[case.vector];
        let token = chosen(vector, &choice(&params, vector)) as usize;
        let score = |token: usize| case.processed[token].unwrap_or(f64::NEG_INFINITY);
        let best = (0..case.processed.len()).map(score).fold(f64::NEG_INFINITY, f64::max);
        assert!(score(token) > best - TOLERANCE, "{:?}: {token}", case.parameters);
    }
}

/// The distinct tokens of 64 draws from `logits`.
fn drawn(logits: &[f32], change: impl Fn(&mut SamplingParams)) -> Vec<TokenId> {
    let mut seen: Vec<TokenId> = (0..64)
        .map(|seed| {
            let mut params = SamplingParams::greedy();
            (params.temperature, params.seed) = (1.0, seed);
            change(&mut params);
            let vector = Vector { logits: logits.to_vec(), tokens: vec![0], prompt_length: 0 };
            chosen(&vector, &choice(&params, &vector))
        })
        .collect();
    seen.sort_unstable();
    seen.dedup();
    seen
}

#[test]
fn filter_ties_keep_the_lowest_ids() {
    let logits = [0.0, 1.0, 1.0, 0.0, 1.0, 1.0, -1.0];
    assert_eq!(drawn(&logits, |params| params.top_k = Some(3)), [1, 2, 4]);
    assert_eq!(drawn(&logits, |params| params.top_k = Some(1)), [1]);
    assert_eq!(drawn(&[2.0; 8], |params| params.top_p = Some(0.4)), [0, 1, 2, 3]);
    assert_eq!(drawn(&[2.0; 8], |params| params.top_p = Some(1e-30)), [0]);
    assert_eq!(drawn(&[2.0; 8], |params| (params.top_k, params.top_p) = (Some(4), Some(0.5))), [0, 1]);
    assert_eq!(drawn(&logits, |params| params.min_p = Some(1.0)), [1, 2, 4, 5]);
    assert_eq!(drawn(&[0.5; 5], |_| ()), [0, 1, 2, 3, 4]);
}

#[test]
fn infinite_biases_force_and_ban() {
    let logits = [0.0, 1.0, 2.0, 3.0];
    assert_eq!(drawn(&logits, |params| params.logit_bias = vec![(1, f32::INFINITY)]), [1]);
    let ban = |tokens: &[TokenId]| tokens.iter().map(|&token| (token, f32::NEG_INFINITY)).collect::<Vec<_>>();
    assert_eq!(drawn(&logits, |params| params.logit_bias = ban(&[0, 1, 3])), [2]);
    assert_eq!(
        drawn(&logits, |params| (params.logit_bias, params.top_p) = (ban(&[2, 3]), Some(0.9))),
        [0, 1]
    );
}

#[test]
fn masks_limit_draws_whatever_the_biases() {
    let vector = Vector { logits: vec![5.0, 0.0, 1.0, 0.5], tokens: vec![0], prompt_length: 0 };
    let mut params = SamplingParams::greedy();
    params.logit_bias = vec![(0, f32::INFINITY)];
    for (temperature, seed) in [(0.0, 0), (1.0, 1), (1.0, 2), (1.0, 3)] {
        (params.temperature, params.seed) = (temperature, seed);
        let masked = Choice { mask: Some(TokenMask::allowing(4, [1, 3])), ..choice(&params, &vector) };
        let token = chosen(&vector, &masked);
        assert!(token == 3 || token == 1 && temperature > 0.0);
    }
}

#[test]
fn token_counts_on_device_and_host_agree() {
    let history = |tokens: &[TokenId], generated: &[u32]| -> Vec<Occurrence> {
        tokens.iter().zip(generated).map(|(&token, &generated)| Occurrence { token, generated }).collect()
    };
    let bits = |counted: &Counted| {
        let held = counted.held.astype(DType::F32).unwrap().to_vec::<f32>().unwrap();
        (held, counted.generated.to_vec::<f32>().unwrap())
    };
    let counted = Counted::new(&history(&[1, 4], &[0, 2]), 6).unwrap().unwrap();
    let token = |token: u32| Array::from_slice(&[token], &[1]).unwrap();
    for (added, generated, expected) in [
        (4, true, history(&[1, 4], &[0, 3])),
        (1, true, history(&[1, 4], &[1, 2])),
        (0, false, history(&[0, 1, 4], &[0, 0, 2])),
    ] {
        let expected = Counted::new(&expected, 6).unwrap().unwrap();
        assert_eq!(bits(&counted.with(&token(added), generated).unwrap()), bits(&expected));
    }
    assert!(Counted::new(&[], 6).unwrap().is_none());
}
