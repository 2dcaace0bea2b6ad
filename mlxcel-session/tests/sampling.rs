//! Sampling on the host, through models and engines.

use std::sync::Arc;

use mlxcel_core::reference::ReferenceBackend;
use mlxcel_session::mlxcel_core::SamplingFields;
use mlxcel_session::{
    Candidates, Capabilities, Dry, Engine, ErrorKind, Mirostat, Model, Options, Result, SamplingStep,
    StepContext, TokenId, Xtc,
};

/// An engine that leaves everything to the host: no field, no mask, no likely tokens beside the chosen one.
fn model(sequences: usize) -> Model {
    let capabilities =
        Capabilities::new(sequences, 256).with_logits(true).with_sampling(SamplingFields::NONE);
    let backend = ReferenceBackend::new().with_capabilities(capabilities.with_batch_rows(sequences));
    Model::from_parts(backend.model().unwrap(), None)
}

/// Uses every sampling step, including those that depend on earlier tokens and draws.
fn options(seed: u64) -> Options {
    Options::new(24)
        .with_temperature(1.1)
        .with_top_n_sigma(3.0)
        .with_top_p(0.98)
        .with_typical_p(0.95)
        .with_xtc(Xtc::new(0.4, 0.1))
        .with_mirostat(Mirostat::new(3.0, 0.2))
        .with_repetition_penalty(1.1)
        .with_frequency_penalty(0.1)
        .with_penalty_window(16)
        .with_no_repeat_ngram(5)
        .with_dry(Dry::new(0.5))
        .with_seed(seed)
}

fn prompt(number: u64) -> Vec<TokenId> {
    (0..3 + number as TokenId % 7).map(|i| (i * 11 + number as TokenId) % 60).collect()
}

#[test]
fn a_seed_gives_the_same_tokens_for_any_batch_composition() {
    let alone = model(1);
    let expected: Vec<_> = (0..24)
        .map(|seed| alone.generate_tokens(&prompt(seed), &options(seed)).unwrap().complete().unwrap().tokens)
        .collect();
    assert!(expected.iter().any(|tokens| *tokens != expected[0]));
    for sequences in [1, 5] {
        let engine = Engine::new(model(sequences)).unwrap();
        let streams: Vec<_> =
            (0..24).map(|seed| engine.generate_tokens(&prompt(seed), &options(seed))).collect();
        for (stream, expected) in streams.into_iter().zip(&expected) {
            assert_eq!(stream.unwrap().complete().unwrap().tokens, *expected, "of {sequences} sequences");
        }
    }
}

/// Only even tokens.
#[derive(Debug)]
struct Even;

impl SamplingStep for Even {
    fn name(&self) -> &str {
        "even"
    }

    fn apply(&self, candidates: &mut Candidates, _: &StepContext<'_>) -> Result<()> {
        candidates.retain(|candidate| candidate.token % 2 == 0);
        Ok(())
    }
}

#[test]
fn custom_steps_and_top_logprobs_move_sampling_to_the_host() {
    let everything = Model::from_parts(ReferenceBackend::new().model().unwrap(), None);
    let even = Options::new(12).with_step(Arc::new(Even));
    for model in [&everything, &model(1)] {
        let tokens = model.generate_tokens(&prompt(1), &even).unwrap().complete().unwrap().tokens;
        assert!(tokens.iter().all(|token| token % 2 == 0), "{tokens:?}");
        let options = Options::new(4).with_top_logprobs(3);
        let completion = model.generate_tokens(&prompt(1), &options).unwrap().complete().unwrap();
        for ((top, token), logprob) in
            completion.top_logprobs.iter().zip(&completion.tokens).zip(&completion.logprobs)
        {
            assert_eq!((top.len(), top[0].token), (3, *token));
            assert!((top[0].logprob - logprob).abs() < 1e-5 && top[1].logprob <= top[0].logprob);
        }
    }
    let nothing = ReferenceBackend::new().with_capabilities(Capabilities::new(1, 64)).model().unwrap();
    let nothing = Model::from_parts(nothing, None);
    for (options, field) in [
        (even, "steps"),
        (Options::new(4).with_top_logprobs(1), "top_logprobs"),
        (Options::new(4).with_allowed_tokens([1]), "allowed_tokens"),
    ] {
        let error = nothing.generate_tokens(&prompt(1), &options).unwrap_err();
        assert_eq!((error.kind(), error.context("field")), (ErrorKind::Unsupported, Some(field)));
    }
}
