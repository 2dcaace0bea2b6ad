//! The sampler beside the logits processors of transformers, from a file that `tests/fixtures/transformers_sampling.py`
//! writes.

use serde::Deserialize;

use super::*;

/// How far float32 arithmetic may lie from ours.
const TOLERANCE: f64 = 1e-5;

#[derive(Deserialize)]
struct Fixture {
    vectors: Vec<Vector>,
    cases: Vec<Case>,
}

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
    /// The classes that transformers ran.
    order: Vec<String>,
    /// After bias and penalties; none is minus infinity.
    processed: Vec<Option<f64>>,
    /// After all; none for a token that may not be drawn.
    probabilities: Vec<Option<f64>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
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
    fn sampler(&self, seed: u64) -> HostSampler {
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
        HostSampler::new(params).unwrap()
    }
}

fn fixture() -> Fixture {
    serde_json::from_str(include_str!("../../tests/fixtures/transformers_sampling.json")).unwrap()
}

/// Calls `check` with each case, its vector, and words that name both.
fn for_each_case(check: impl Fn(&Case, &Vector, &str)) {
    let Fixture { vectors, cases } = fixture();
    assert!(!cases.is_empty());
    for case in &cases {
        let name = format!("{:?}, vector {}, {:?}", case.parameters, case.vector, case.order);
        check(case, &vectors[case.vector], &name);
    }
}

#[test]
fn bias_and_penalties_give_the_logits_of_transformers() {
    for_each_case(|case, vector, name| {
        let sampler = case.parameters.sampler(0);
        let scores = sampler.scores(&vector.logits, &vector.tokens, vector.prompt_length).unwrap();
        assert_eq!(scores.len(), case.processed.len(), "{name}");
        for (token, (&found, expected)) in scores.iter().zip(&case.processed).enumerate() {
            let expected = expected.unwrap_or(f64::NEG_INFINITY);
            let close = found == expected || (found - expected).abs() < TOLERANCE;
            assert!(close, "{name}: token {token} has {found}, not {expected}");
        }
    });
}

#[test]
fn the_distribution_drawn_from_is_that_of_transformers() {
    for_each_case(|case, vector, name| {
        let sampler = case.parameters.sampler(0);
        let scores = sampler.scores(&vector.logits, &vector.tokens, vector.prompt_length).unwrap();
        let candidates = sampler.candidates(&scores, best_of(&scores).unwrap().1);
        let expected: Vec<(TokenId, f64)> =
            (0..).zip(&case.probabilities).filter_map(|(token, p)| p.map(|p| (token, p))).collect();
        let tokens = |list: &[Candidate]| list.iter().map(|&(token, _)| token).collect::<Vec<_>>();
        assert_eq!(tokens(&candidates), tokens(&expected), "{name}");
        let sum = total(&candidates);
        for (&(token, weight), &(_, expected)) in candidates.iter().zip(&expected) {
            let found = weight / sum;
            assert!(
                (found - expected).abs() < TOLERANCE,
                "{name}: token {token} has {found}, not {expected}"
            );
        }
    });
}

#[test]
fn a_draw_is_where_the_uniform_number_falls_in_the_distribution_of_transformers() {
    for_each_case(|case, vector, name| {
        for seed in 0..16 {
            let sampler = case.parameters.sampler(seed);
            let drawn = sampler.sample(&vector.logits, &vector.tokens, vector.prompt_length).unwrap().token;
            let probability = |token: usize| case.probabilities[token].unwrap_or(0.0);
            let drawn = drawn as usize;
            assert!(probability(drawn) > 0.0, "{name}: {drawn} may not be drawn");
            let below: f64 = (0..drawn).map(probability).sum();
            let above = below + probability(drawn);
            let uniform = sampler.uniform(vector.tokens.len());
            assert!(
                below - TOLERANCE < uniform && uniform < above + TOLERANCE,
                "{name}: {uniform} is not in {below}..{above} of token {drawn}"
            );
        }
    });
}

#[test]
fn greedy_choice_is_the_likeliest_of_the_logits_of_transformers() {
    for_each_case(|case, vector, name| {
        let mut params = case.parameters.sampler(0).params;
        params.temperature = 0.0;
        let greedy = HostSampler::new(params).unwrap();
        let token = greedy.sample(&vector.logits, &vector.tokens, vector.prompt_length).unwrap().token;
        let score = |token: usize| case.processed[token].unwrap_or(f64::NEG_INFINITY);
        let best = (0..case.processed.len()).max_by(|&a, &b| score(a).total_cmp(&score(b))).unwrap();
        assert_eq!(token as usize, best, "{name}");
    });
}

#[test]
fn every_processor_that_a_field_stands_for_took_part() {
    let Fixture { cases, .. } = fixture();
    for class in [
        "SequenceBiasLogitsProcessor",
        "RepetitionPenaltyLogitsProcessor",
        "CountPenalties",
        "TemperatureLogitsWarper",
        "TopKLogitsWarper",
        "TopPLogitsWarper",
        "MinPLogitsWarper",
    ] {
        let alone = cases.iter().any(|case| case.order == [class]);
        let combined = cases.iter().any(|case| case.order.len() > 1 && case.order.iter().any(|c| c == class));
        assert!(alone && combined, "{class}");
    }
}
