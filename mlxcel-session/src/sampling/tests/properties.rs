//! Whatever the parameters, the order and the logits, there is a distribution to draw from.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Any finite logit: near one another, far apart, and at the ends of what a float holds.
fn logit() -> impl Strategy<Value = f32> {
    prop_oneof![
        4 => -4.0f32..4.0,
        2 => -200.0f32..200.0,
        1 => prop::num::f32::NORMAL | prop::num::f32::SUBNORMAL | prop::num::f32::ZERO,
        1 => prop::sample::select(vec![0.0, 1.0, f32::MAX, f32::MIN]),
    ]
}

/// Numbers of parameters: about 1, whole, and at the ends of what a float holds.
fn number() -> impl Strategy<Value = f32> {
    prop_oneof![
        4 => -3.0f32..5.0,
        4 => 0.001f32..=1.0,
        4 => (0u32..20).prop_map(|whole| whole as f32),
        1 => prop::sample::select(vec![f32::MIN_POSITIVE, 1e-45, f32::MAX, f32::MIN]),
    ]
}

fn params() -> impl Strategy<Value = SamplingParams> {
    let numbers = vec(prop::option::of(number()), SamplingNumber::ALL.len());
    (numbers, vec((0u32..8, logit()), 0..3), any::<u64>()).prop_map(|(numbers, biases, seed)| {
        let mut params =
            SamplingParams::greedy().with_temperature(1.0).with_logit_bias(biases).with_seed(seed);
        for (number, value) in SamplingNumber::ALL.iter().zip(numbers) {
            let value = value.map(|value| f64::from(if number.is_whole() { value.trunc() } else { value }));
            if let Some(value) = value.filter(|&value| number.allows(value)) {
                // A member of a group that is not there has no place.
                let _ = number.set(&mut params, Some(value));
            }
        }
        params
    })
}

/// The steps that may remove the most likely token.
const RISKY: [&str; 2] = ["typical_p", "xtc"];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_step_order_gives_a_valid_distribution(
        logits in vec(logit(), 8..80),
        params in params(),
        tokens in vec(0u32..8, 0..20),
        prompt_length in 0usize..24,
        drawn in vec(-30.0f32..=0.0, 0..10),
        order in any::<u64>(),
    ) {
        let shuffle = |steps: &mut Vec<Arc<dyn SamplingStep>>| {
            let mut state = order;
            for i in (1..steps.len()).rev() {
                steps.swap(i, (state % (i as u64 + 1)) as usize);
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407) >> 1;
            }
        };
        let mut sampler = HostSampler::new(params).unwrap();
        shuffle(&mut sampler.logits);
        shuffle(&mut sampler.draw);
        let mut context = SamplingContext::new(&tokens, prompt_length);
        (context.drawn, context.top) = (&drawn, 3);
        let scores = sampler.scores(&logits, &context).unwrap();
        prop_assert!(scores.iter().all(|candidate| candidate.score.is_finite()));

        let found = sampler.distribution(&logits, &context).unwrap();
        prop_assert!(!found.is_empty());
        prop_assert!(found.iter().all(|&(_, p)| p.is_finite() && p >= 0.0), "{found:?}");
        let sum: f64 = found.iter().map(|(_, p)| p).sum();
        prop_assert!((sum - 1.0).abs() < 1e-9, "{sum}");
        prop_assert!(found.is_sorted_by(|a, b| a.0 < b.0));
        prop_assert!(found.iter().all(|&(token, _)| scores.score(token).is_some()));
        if !sampler.step_names().iter().any(|name| RISKY.contains(name)) {
            let best = scores.best().unwrap().token;
            prop_assert!(found.iter().any(|&(token, _)| token == best), "{best} is lost: {found:?}");
        }

        let chosen = sampler.sample(&logits, &context).unwrap();
        let probability = found.iter().find(|(token, _)| *token == chosen.token).map(|(_, p)| *p);
        prop_assert!(probability.is_some_and(|p| p > 0.0), "{chosen:?}");
        prop_assert!(chosen.logprob <= 0.0 && chosen.drawn_logprob.unwrap() <= 1e-6);
        prop_assert_eq!(chosen.top.len(), 3);
        prop_assert_eq!(&chosen, &sampler.sample(&logits, &context).unwrap());
    }
}
