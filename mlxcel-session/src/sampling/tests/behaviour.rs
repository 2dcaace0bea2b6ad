//! What each step does, on logits that can be followed by hand.

use super::*;

/// Logits whose softmax is 0.4, 0.1, 0.3, 0.2.
fn logits() -> [f32; 4] {
    [0.4, 0.1, 0.3, 0.2].map(f32::ln)
}

fn after(tokens: &[TokenId]) -> SamplingContext<'_> {
    SamplingContext::new(tokens, 0)
}

fn sampler(change: impl FnOnce(&mut SamplingParams)) -> HostSampler {
    let mut params = SamplingParams::greedy();
    params.temperature = 1.0;
    change(&mut params);
    HostSampler::new(params).unwrap()
}

fn assert_distribution(change: impl FnOnce(&mut SamplingParams), expected: &[(TokenId, f64)]) {
    let found = sampler(change).distribution(&logits(), &after(&[])).unwrap();
    let tokens = |list: &[(TokenId, f64)]| list.iter().map(|&(token, _)| token).collect::<Vec<_>>();
    assert_eq!(tokens(&found), tokens(expected));
    for (found, expected) in found.iter().zip(expected) {
        assert!((found.1 - expected.1).abs() < 1e-6, "{found:?} is not {expected:?}");
    }
}

#[test]
fn an_infinite_bias_forbids_or_forces_its_token() {
    let bias = sampler(|p| p.logit_bias = vec![(3, 1.5), (0, f32::NEG_INFINITY)]);
    let scores = bias.scores(&[2.0, -2.0, 1.0, 0.5], &after(&[])).unwrap();
    assert_eq!([0, 1, 2, 3].map(|token| scores.score(token)), [None, Some(-2.0), Some(1.0), Some(2.0)]);
    let only = sampler(|p| p.logit_bias = vec![(1, f32::INFINITY)]);
    assert!((0..20).all(|n| only.sample(&logits(), &after(&vec![0; n])).unwrap().token == 1));
}

#[test]
fn draws_follow_the_distribution_and_depend_on_seed_and_position_alone() {
    let sampler = sampler(|p| p.seed = 7);
    let draws: Vec<_> =
        (0..4000).map(|n| sampler.sample(&logits(), &after(&vec![0; n])).unwrap().token).collect();
    for (token, probability) in [(0, 0.4), (1, 0.1), (2, 0.3), (3, 0.2)] {
        let share = draws.iter().filter(|&&drawn| drawn == token).count() as f64 / draws.len() as f64;
        // Four standard deviations of a share of 4000 draws are at most 0.032.
        assert!((share - probability).abs() < 0.032, "token {token}: {share}");
    }
    // In another order, from a clone, after other draws: the same.
    let again = sampler.clone();
    assert!(
        (0..100).rev().all(|n| { again.sample(&logits(), &after(&vec![1; n])).unwrap().token == draws[n] })
    );
    let other = self::sampler(|p| p.seed = 8);
    assert!((0..100).any(|n| other.sample(&logits(), &after(&vec![0; n])).unwrap().token != draws[n]));
}

#[test]
fn the_draws_of_a_seed_are_stable_across_releases() {
    // Recorded: a change here changes what applications say for a seed.
    let sampler = sampler(|p| p.seed = 42);
    let draws: Vec<_> =
        (0..12).map(|n| sampler.sample(&logits(), &after(&vec![0; n])).unwrap().token).collect();
    assert_eq!(draws, [2, 2, 0, 0, 3, 0, 0, 0, 3, 2, 2, 3]);
}

#[test]
fn greedy_takes_the_argmax_with_the_models_own_logprob() {
    let greedy = sampler(|p| {
        p.temperature = 0.0;
        p.repetition_penalty = Some(10.0);
    });
    let token = greedy.sample(&logits(), &after(&[2])).unwrap();
    assert_eq!(token.token, 0);
    assert!((f64::from(token.logprob) - 0.4f64.ln()).abs() < 1e-6);
    assert_eq!(greedy.sample(&[1.0, 1.0, 0.0], &after(&[])).unwrap().token, 0, "ties go to the lowest id");
}

#[test]
fn logits_that_allow_no_choice_are_errors() {
    let kind = |logits: &[f32], bias: Vec<(TokenId, f32)>| {
        sampler(|p| p.logit_bias = bias).sample(logits, &after(&[])).unwrap_err().kind()
    };
    assert_eq!(kind(&[0.0, f32::NAN], vec![]), ErrorKind::Device);
    assert_eq!(kind(&[f32::NAN, 0.0, f32::NAN], vec![]), ErrorKind::Device);
    assert_eq!(kind(&[0.0, f32::INFINITY], vec![]), ErrorKind::Device);
    assert_eq!(kind(&[f32::NEG_INFINITY; 2], vec![]), ErrorKind::Device);
    assert_eq!(kind(&[0.0], vec![(0, f32::NEG_INFINITY)]), ErrorKind::InvalidInput);
    assert_eq!(kind(&[0.0, 1.0], vec![(0, f32::NEG_INFINITY), (0, f32::INFINITY)]), ErrorKind::InvalidInput);
    assert_eq!(kind(&[0.0], vec![(1, 1.0)]), ErrorKind::InvalidInput);
    assert_eq!(kind(&[], vec![]), ErrorKind::InvalidInput);
    for (change, field) in [
        ((|p| p.allowed_tokens = Some(vec![0, TokenId::MAX])) as fn(&mut SamplingParams), "allowed_tokens"),
        (|p| p.forbidden_tokens = vec![4], "forbidden_tokens"),
        (|p| p.logit_bias = vec![(4, 1.0)], "logit_bias"),
    ] {
        let error = sampler(change).sample(&logits(), &after(&[])).unwrap_err();
        assert_eq!((error.kind(), error.context("field")), (ErrorKind::InvalidInput, Some(field)));
    }
}

#[test]
fn masks_and_filters_keep_only_allowed_tokens() {
    assert_distribution(|p| p.allowed_tokens = Some(vec![3, 1, 3]), &[(1, 1.0 / 3.0), (3, 2.0 / 3.0)]);
    assert_distribution(|p| p.forbidden_tokens = vec![0, 3], &[(1, 0.25), (2, 0.75)]);
    // The most likely are looked for among the allowed.
    assert_distribution(|p| (p.top_k, p.allowed_tokens) = (Some(1), Some(vec![1, 3])), &[(3, 1.0)]);
    assert_distribution(|p| (p.top_k, p.forbidden_tokens) = (Some(1), vec![0]), &[(2, 1.0)]);
    let sampler = sampler(|p| p.forbidden_tokens = vec![0]);
    let mut context = after(&[]);
    let mask = TokenMask::allowing(4, [0, 1, 2]);
    context.mask = Some(&mask);
    let found = sampler.distribution(&logits(), &context).unwrap();
    assert_eq!(found.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [1, 2]);
    let useless = [TokenMask::allowing(4, [0]), TokenMask::allowing(5, [1])];
    for mask in &useless {
        context.mask = Some(mask);
        assert_eq!(sampler.sample(&logits(), &context).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}

#[test]
fn choices_report_top_logprobs_and_the_sampled_distribution() {
    let sampler = sampler(|p| (p.temperature, p.forbidden_tokens) = (0.5, vec![0]));
    let mut context = after(&[]);
    context.top = 2;
    let token = sampler.sample(&logits(), &context).unwrap();
    // Of the model's own distribution, which nothing is forbidden in.
    let top: Vec<_> = token.top.iter().map(|top| (top.token, top.logprob.exp())).collect();
    assert_eq!((top[0].0, top[1].0, top.len()), (0, 2, 2));
    assert!((top[0].1 - 0.4).abs() < 1e-6 && (top[1].1 - 0.3).abs() < 1e-6);
    assert!((token.logprob - logits()[token.token as usize]).abs() < 1e-6);
    let drawn = sampler.distribution(&logits(), &context).unwrap();
    let expected = drawn.iter().find(|(other, _)| *other == token.token).unwrap().1.ln();
    assert!((f64::from(token.drawn_logprob.unwrap()) - expected).abs() < 1e-6);
    let greedy = HostSampler::new(SamplingParams::greedy()).unwrap();
    assert_eq!(greedy.sample(&logits(), &context).unwrap().drawn_logprob, Some(0.0));
}

#[test]
fn no_repeat_ngram_is_skipped_when_it_would_ban_every_token() {
    let left = |n: u32, tokens: &[TokenId]| {
        let sampler = sampler(|p| p.no_repeat_ngram = Some(n));
        sampler.distribution(&logits(), &after(tokens)).unwrap().len()
    };
    assert_eq!([left(1, &[0, 1, 2]), left(1, &[0, 1, 2, 3]), left(2, &[1, 1])], [1, 4, 3]);
}

#[test]
fn filters_keep_what_is_exactly_at_their_limit() {
    let left = |change: fn(&mut SamplingParams)| {
        let found = sampler(change).distribution(&[0.0, 0.0, -1.0], &after(&[])).unwrap();
        found.into_iter().map(|(token, _)| token).collect::<Vec<_>>()
    };
    let equal = |change: fn(&mut SamplingParams)| {
        sampler(change).distribution(&[0.0, 0.0], &after(&[])).unwrap().len()
    };
    assert_eq!(left(|p| p.min_p = Some(1.0)), [0, 1]);
    assert_eq!(equal(|p| p.top_n_sigma = Some(1.0)), 2);
    assert_eq!(equal(|p| p.typical_p = Some(0.5)), 2);
    assert_eq!(equal(|p| p.mirostat = Some(Mirostat::new(0.5, 0.1))), 2);
    assert_eq!(equal(|p| p.xtc = Some(Xtc::new(1.0, 0.5))), 1);
}

#[test]
fn the_penalty_of_long_repetitions_ends_growing_where_a_float_does() {
    let sampler = sampler(|p| p.dry = Some(Dry::new(1.0).with_base(2.0)));
    let scores = sampler.scores(&logits(), &after(&[1; 400])).unwrap();
    assert_eq!(scores.score(1), Some(-2f64.powi(127)));
}

/// With every parameter that has a step.
fn every_step() -> HostSampler {
    sampler(|p| {
        *p = p
            .clone()
            .with_logit_bias([(0, 1.0)])
            .with_repetition_penalty(1.1)
            .with_presence_penalty(0.1)
            .with_dry(Dry::new(1.0))
            .with_no_repeat_ngram(2)
            .with_top_n_sigma(1.0)
            .with_dynamic_temperature(DynamicTemperature::new(0.5))
            .with_top_k(3)
            .with_top_p(0.6)
            .with_min_p(0.6)
            .with_typical_p(0.5)
            .with_xtc(Xtc::new(1.0, 0.25))
            .with_mirostat(Mirostat::new(0.9, 0.1));
    })
}

#[test]
fn every_parameter_has_its_step_in_the_documented_order() {
    let names = [
        "limits",
        "logit_bias",
        "repetition_penalty",
        "presence_and_frequency_penalty",
        "dry",
        "no_repeat_ngram",
        "top_n_sigma",
        "dynamic_temperature",
        "top_k",
        "top_p",
        "min_p",
        "typical_p",
        "xtc",
        "mirostat",
    ];
    assert_eq!(every_step().step_names(), names);
}

#[test]
fn filters_depend_on_the_differences_of_scores_alone() {
    let sampler = every_step();
    let context = after(&[]);
    for filter in &sampler.draw {
        let left = |shift: f64| {
            let mut candidates = Candidates::new(&logits()).unwrap();
            candidates.change_all(|candidate| candidate.score + shift);
            candidates.settle().unwrap();
            filter.apply(&mut candidates, &StepContext::new(&context, &sampler.random)).unwrap();
            candidates.iter().map(|candidate| candidate.token).collect::<Vec<_>>()
        };
        assert_eq!(left(1000.0), left(0.0), "{}", filter.name());
        assert!(
            left(-1000.0) == left(0.0) && (left(0.0).len() < 4 || filter.name() == "dynamic_temperature")
        );
    }
}

#[test]
fn xtc_applies_with_its_probability() {
    let sampler = sampler(|p| p.xtc = Some(Xtc::new(0.25, 0.15)));
    let happens = |n: usize| {
        let found = sampler.distribution(&logits(), &after(&vec![0; n])).unwrap();
        let tokens: Vec<TokenId> = found.iter().map(|(token, _)| *token).collect();
        // 0.4, 0.3 and 0.2 reach the threshold, and 0.2 stays.
        assert!(tokens == [0, 1, 2, 3] || tokens == [1, 3], "{tokens:?}");
        tokens.len() == 2
    };
    let share = (0..1000).filter(|&n| happens(n)).count();
    assert!((190..310).contains(&share), "{share}");
}

#[test]
fn a_dynamic_temperature_of_zero_is_greedy() {
    // All is certain but for rounding, so the temperature is the low end: 0.
    let sampler = sampler(|p| p.dynamic_temperature = Some(DynamicTemperature::new(1.0)));
    let found = sampler.distribution(&[900.0, 0.0, 0.0], &after(&[])).unwrap();
    assert_eq!(found, [(0, 1.0)]);
}

#[test]
fn custom_steps_run_between_penalties_and_draw() {
    #[derive(Debug)]
    struct Own;
    impl SamplingStep for Own {
        fn name(&self) -> &str {
            "own"
        }
        fn apply(&self, candidates: &mut Candidates, context: &StepContext<'_>) -> mlxcel_core::Result<()> {
            assert_eq!((context.generated(), candidates.score(1)), (&[2][..], None));
            assert!((candidates.score(0).unwrap() - (0.4f64.ln() + 1.0)).abs() < 1e-6);
            candidates.change_all(|candidate| f64::from(candidate.token));
            // What is forbidden stays so.
            candidates.change(1, |_| 10.0);
            Ok(())
        }
    }
    for temperature in [0.0, 1.0] {
        let params = SamplingParams::greedy()
            .with_temperature(temperature)
            .with_top_k(1)
            .with_forbidden_tokens([1])
            .with_logit_bias([(0, 1.0)]);
        let sampler = HostSampler::new(params).unwrap().with_step(std::sync::Arc::new(Own));
        assert_eq!(sampler.step_names()[..3], ["limits", "logit_bias", "own"]);
        assert_eq!(sampler.step_names().contains(&"top_k"), temperature > 0.0);
        assert_eq!(sampler.sample(&logits(), &SamplingContext::new(&[0, 2], 1)).unwrap().token, 3);
    }
}
