//! The sampler beside the logits processors of transformers, from a file that
//! `tests/fixtures/transformers_sampling.py` writes.

use super::*;

fn fixture() -> Fixture {
    serde_json::from_str(include_str!("../../../tests/fixtures/transformers_sampling.json")).unwrap()
}

#[test]
fn bias_and_penalties_match_transformers() {
    fixture().for_each_case(|case, vector, name| {
        let sampler = case.parameters.sampler(0);
        let scores = sampler.scores(&vector.logits, &vector.context()).unwrap();
        for (token, expected) in (0..).zip(&case.processed) {
            let found = scores.score(token).unwrap_or(f64::NEG_INFINITY);
            let expected = expected.unwrap_or(f64::NEG_INFINITY);
            let close = found == expected || (found - expected).abs() < TOLERANCE;
            assert!(close, "{name}: token {token} has {found}, not {expected}");
        }
    });
}

#[test]
fn the_sampled_distribution_matches_transformers() {
    fixture().assert_distributions();
}

#[test]
fn a_draw_is_where_the_uniform_number_falls_in_the_distribution_of_transformers() {
    fixture().for_each_case(|case, vector, name| {
        for seed in 0..16 {
            let sampler = case.parameters.sampler(seed);
            let drawn = sampler.sample(&vector.logits, &vector.context()).unwrap().token;
            let probability = |token: usize| case.probabilities[token].unwrap_or(0.0);
            let drawn = drawn as usize;
            assert!(probability(drawn) > 0.0, "{name}: {drawn} may not be drawn");
            let below: f64 = (0..drawn).map(probability).sum();
            let above = below + probability(drawn);
            let uniform = sampler.random.uniform(vector.tokens.len(), 0);
            assert!(
                below - TOLERANCE < uniform && uniform < above + TOLERANCE,
                "{name}: {uniform} is not in {below}..{above} of token {drawn}"
            );
        }
    });
}

#[test]
fn greedy_choices_match_the_argmax_of_transformers() {
    fixture().for_each_case(|case, vector, name| {
        let greedy = HostSampler::new(case.parameters.params(0).with_temperature(0.0)).unwrap();
        let token = greedy.sample(&vector.logits, &vector.context()).unwrap().token;
        let score = |token: usize| case.processed[token].unwrap_or(f64::NEG_INFINITY);
        let best = (0..case.processed.len()).max_by(|&a, &b| score(a).total_cmp(&score(b))).unwrap();
        assert_eq!(token as usize, best, "{name}");
    });
}

#[test]
fn every_logits_processor_of_transformers_is_covered() {
    let Fixture { mut cases, host_cases, .. } = fixture();
    cases.extend(host_cases);
    for class in [
        "SequenceBiasLogitsProcessor",
        "RepetitionPenaltyLogitsProcessor",
        "CountPenalties",
        "TemperatureLogitsWarper",
        "TopKLogitsWarper",
        "TopPLogitsWarper",
        "MinPLogitsWarper",
        "TypicalLogitsWarper",
        "NoRepeatNGramLogitsProcessor",
        "SuppressTokensLogitsProcessor",
    ] {
        let alone = cases.iter().any(|case| case.order == [class]);
        let combined = cases.iter().any(|case| case.order.len() > 1 && case.order.iter().any(|c| c == class));
        assert!(alone && combined, "{class}");
    }
}
