//! Speculation changes no token: on the reference engine with models at random, and on every engine that is
//! compiled in with the bundled model. `MLXCEL_SPECULATION_CASES` sets how many generations of each kind
//! there are.

use crate::engine::harness::alone;
use crate::support::{Chance, Replay, storyteller};
use mlxcel_session::mlxcel_core::reference::ReferenceBackend;
use mlxcel_session::mlxcel_core::{SamplingField, SamplingFields};
use mlxcel_session::{
    Completion, DraftModel, EarlierTexts, Engine, ErrorKind, LoadOptions, Model, Options, PromptLookup,
    SamplingParams, Speculation, TokenId, available_backends, select_backend,
};

/// How many generations of each kind.
fn cases(default: usize) -> usize {
    std::env::var("MLXCEL_SPECULATION_CASES").map_or(default, |count| count.parse().unwrap())
}

/// Random options, without speculation.
fn options(random: &mut Chance, vocabulary: usize, most: usize) -> Options {
    let mut sampling = SamplingParams::greedy();
    if !random.one_in(3) {
        sampling = sampling
            .with_temperature(0.3 + random.below(12) as f32 / 10.0)
            .with_seed(random.below(99) as u64);
    }
    if random.one_in(3) {
        sampling.repetition_penalty = Some(1.2);
    }
    if random.one_in(4) {
        (sampling.presence_penalty, sampling.frequency_penalty) = (Some(0.4), Some(0.2));
    }
    if random.one_in(4) {
        sampling.top_p = Some(0.9);
    }
    if random.one_in(5) {
        sampling.forbidden_tokens = (0..3).map(|_| random.below(vocabulary) as TokenId).collect();
    }
    if random.one_in(6) {
        sampling.no_repeat_ngram = Some(4);
    }
    let mut options = Options::new(1 + random.below(most)).with_sampling(sampling);
    if random.one_in(3) {
        options.stop_tokens = vec![random.below(vocabulary) as TokenId];
    }
    options.ignore_stop = random.one_in(2);
    options.top_logprobs = random.below(3) as u16;
    options
}

/// Random speculation options: a drafter of every kind, by its number of tokens or as many as pay.
fn speculation(
    random: &mut Chance,
    shared: &Speculation,
    small: &Model,
    text: &[TokenId],
    prompt: usize,
) -> Speculation {
    let replay = |wrong| Replay { text: text.to_vec(), prompt, wrong };
    let chosen = match random.below(6) {
        0 => Speculation::new(PromptLookup::default().with_least(1)),
        1 => shared.clone(),
        2 => Speculation::new(DraftModel::new(small.clone())),
        3 => Speculation::new(replay(5)),
        4 => Speculation::new(replay(2)).or(EarlierTexts::default()),
        _ => Speculation::lookup().or(replay(1000)),
    };
    match random.below(4) {
        0 => chosen,
        1 => chosen.with_most(4),
        _ => chosen.with_width(1 + random.below(20)),
    }
}

fn assert_same(plain: &Completion, speculated: &Completion, what: &str) {
    assert_eq!(plain.tokens, speculated.tokens, "{what}");
    assert_eq!(plain.text, speculated.text, "{what}");
    assert_eq!(plain.finish_reason, speculated.finish_reason, "{what}");
    assert_eq!(plain.stop_string, speculated.stop_string, "{what}");
    assert_eq!(plain.top_logprobs.len(), speculated.top_logprobs.len(), "{what}");
    assert!(speculated.usage.accepted_tokens <= speculated.usage.drafted_tokens, "{what}");
    assert_eq!(plain.usage.drafted_tokens, 0, "{what}");
}

/// The reference engine with a model at random; it says little of the same, so that texts repeat.
fn random_model(random: &mut Chance, vocabulary: usize, on_host: bool) -> Model {
    let mut reference = ReferenceBackend::new()
        .with_vocabulary(vocabulary)
        .with_weights_seed(random.below(50) as u64)
        .with_chunk(1 + random.below(20));
    // Without a way back but behind draft tokens.
    reference = match random.below(4) {
        0 => reference.with_window(1 + random.below(12)),
        1 => reference.with_recurrence(),
        _ => reference,
    };
    if on_host {
        let all = reference.model().unwrap().capabilities().clone();
        reference =
            reference.with_capabilities(all.with_sampling(SamplingFields::from([SamplingField::LogitBias])));
    }
    Model::from_parts(reference.model().unwrap(), None)
}

#[test]
fn speculation_changes_no_token_of_random_models() {
    let (mut drafted, mut accepted) = (0, 0);
    for case in 0..cases(300) {
        let mut random = Chance(case as u64);
        let vocabulary = 8 + random.below(56);
        let on_host = random.one_in(2);
        let model = random_model(&mut random, vocabulary, on_host);
        let small = random_model(&mut random, vocabulary, !on_host);
        let shared = Speculation::auto();
        for _ in 0..2 {
            let options = options(&mut random, vocabulary, 60);
            let prompt: Vec<TokenId> =
                (0..1 + random.below(30)).map(|_| random.below(vocabulary) as TokenId).collect();
            let plain = alone(&model, &prompt, &options);
            let draft_tokens = speculation(&mut random, &shared, &small, &plain.tokens, prompt.len());
            let what = format!("case {case}: {options:?}, {draft_tokens:?}");
            let speculating = options.with_speculation(draft_tokens);
            let speculated = alone(&model, &prompt, &speculating);
            assert_same(&plain, &speculated, &what);
            // What this engine computes does not depend on rows.
            assert_eq!(
                (&plain.logprobs, &plain.top_logprobs),
                (&speculated.logprobs, &speculated.top_logprobs),
                "{what}"
            );
            drafted += speculated.usage.drafted_tokens;
            accepted += speculated.usage.accepted_tokens;
        }
    }
    assert!(accepted > 0 && accepted < drafted, "{accepted} of {drafted}");
}

#[test]
fn requests_with_and_without_speculation_share_steps() {
    for case in 0..cases(40) {
        let mut random = Chance(1000 + case as u64);
        let vocabulary = 8 + random.below(56);
        let on_host = random.one_in(2);
        let model = random_model(&mut random, vocabulary, on_host);
        let small = random_model(&mut random, vocabulary, on_host);
        let shared = Speculation::auto();
        let engine = Engine::new(model.clone()).unwrap();
        let requests: Vec<_> = (0..8)
            .map(|_| {
                let options = options(&mut random, vocabulary, 40);
                let prompt: Vec<TokenId> =
                    (0..1 + random.below(60)).map(|_| random.below(vocabulary) as TokenId).collect();
                let plain = alone(&model, &prompt, &options);
                let draft_tokens = speculation(&mut random, &shared, &small, &plain.tokens, prompt.len());
                let options = if random.one_in(4) { options } else { options.with_speculation(draft_tokens) };
                (prompt, options, plain)
            })
            .collect();
        let streams: Vec<_> = requests
            .iter()
            .map(|(prompt, options, _)| engine.generate_tokens(prompt, options).unwrap())
            .collect();
        let mut counted = [0; 2];
        for (stream, (_, options, plain)) in streams.into_iter().zip(&requests) {
            let speculated = stream.complete().unwrap();
            assert_same(plain, &speculated, &format!("case {case}: {options:?}"));
            assert_eq!(plain.logprobs, speculated.logprobs);
            counted[0] += speculated.usage.drafted_tokens as u64;
            counted[1] += speculated.usage.accepted_tokens as u64;
        }
        let stats = engine.stats();
        assert_eq!([stats.drafted_tokens, stats.accepted_tokens], counted, "case {case}");
    }
}

#[test]
fn all_engines_generate_the_same_tokens_from_the_bundled_model() {
    let prompts = ["Once upon a time", "The dog and the cat", "Tom said to Tim, and Tim said to Tom:"];
    // Plugins of PJRT are not at hand everywhere; it has the session of the other engines that run graphs.
    for backend in available_backends().into_iter().filter(|&backend| backend != "pjrt") {
        let load = LoadOptions::default().with_capacity(200);
        let model = Model::load(&select_backend(Some(backend)).unwrap(), storyteller(), &load).unwrap();
        assert!(model.capabilities().verification, "{backend}");
        let small = model.clone();
        let shared = Speculation::auto();
        for case in 0..cases(4) {
            let mut random = Chance(2000 + case as u64);
            let mut options = options(&mut random, model.info().vocabulary_size, 30);
            if random.one_in(3) {
                options = options.with_stop_string(" the");
            }
            let prompt = prompts[random.below(prompts.len())];
            let plain = model.generate(prompt, &options).unwrap().complete().unwrap();
            let tokens = model.tokenizer().unwrap().encode(prompt, true).unwrap().len();
            let draft_tokens = speculation(&mut random, &shared, &small, &plain.tokens, tokens);
            let what = format!("{backend}, case {case}: {options:?}, {draft_tokens:?}");
            let speculating = options.with_speculation(draft_tokens);
            let speculated = model.generate(prompt, &speculating).unwrap().complete().unwrap();
            assert_same(&plain, &speculated, &what);
            let engine = Engine::new(model.clone()).unwrap();
            let both = [0; 2].map(|_| engine.generate(prompt, &speculating).unwrap());
            for stream in both {
                assert_same(&plain, &stream.complete().unwrap(), &format!("batched: {what}"));
            }
        }
    }
}

#[test]
fn accepted_drafts_reduce_passes() {
    let model = Model::from_parts(ReferenceBackend::new().model().unwrap(), None);
    let options = Options::new(60).with_ignore_stop(true);
    let plain = alone(&model, &[1, 2, 3], &options);
    for (wrong, most_passes) in [(1000, 12), (5, 20), (2, 32)] {
        let replay = Replay { text: plain.tokens.clone(), prompt: 3, wrong };
        let options = options.clone().with_speculation(Speculation::new(replay).with_width(7));
        let mut stream = model.generate_tokens(&[1, 2, 3], &options).unwrap();
        while let Some(token) = stream.next_token() {
            token.unwrap();
        }
        assert_eq!(stream.tokens(), plain.tokens);
        assert!(stream.stats().passes <= most_passes, "wrong in 1 of {wrong}: {:?}", stream.stats());
    }
}

#[test]
fn drafts_are_bounded_by_the_context() {
    let model = Model::from_parts(ReferenceBackend::new().model().unwrap(), None);
    let plain = Options::new(20).with_ignore_stop(true);
    let expected = alone(&model, &[1, 1, 1, 1], &plain);
    for speculation in [Speculation::lookup(), Speculation::new(DraftModel::new(model.clone()))] {
        let most = speculation.with_most(usize::MAX).with_width(usize::MAX);
        let found = alone(&model, &[1, 1, 1, 1], &plain.clone().with_speculation(most));
        assert_eq!(found.tokens, expected.tokens);
    }
}

#[test]
fn engines_without_verification_get_no_drafts() {
    let all = ReferenceBackend::new().model().unwrap().capabilities().clone();
    let reference = ReferenceBackend::new().with_capabilities(all.with_verification(false));
    let model = Model::from_parts(reference.model().unwrap(), None);
    let speculation = Speculation::new(PromptLookup::default().with_least(1)).with_width(4);
    let options = Options::new(40).with_ignore_stop(true).with_speculation(speculation);
    let completion = alone(&model, &[1, 1, 1, 1], &options);
    assert_eq!((completion.tokens.len(), completion.usage.drafted_tokens), (40, 0));
}

#[test]
fn a_draft_model_with_another_vocabulary_is_rejected() {
    let model = Model::from_parts(ReferenceBackend::new().model().unwrap(), None);
    let small = Model::from_parts(ReferenceBackend::new().with_vocabulary(32).model().unwrap(), None);
    let options = Options::new(4).with_speculation(Speculation::new(DraftModel::new(small)));
    let error = model.generate_tokens(&[1], &options).unwrap_err();
    assert_eq!((error.kind(), error.context("draft_vocabulary")), (ErrorKind::InvalidInput, Some("32")));
}

#[test]
fn a_model_drafting_for_itself_is_always_accepted() {
    let model = Model::from_parts(ReferenceBackend::new().model().unwrap(), None);
    for temperature in [0.0, 1.0] {
        let sampling = SamplingParams::greedy().with_temperature(temperature).with_seed(3);
        let options = Options::new(50).with_ignore_stop(true).with_sampling(sampling);
        let plain = alone(&model, &[4, 5], &options);
        let options =
            options.with_speculation(Speculation::new(DraftModel::new(model.clone())).with_width(6));
        let speculated = alone(&model, &[4, 5], &options);
        assert_eq!(plain.tokens, speculated.tokens);
        assert_eq!(speculated.usage.drafted_tokens, speculated.usage.accepted_tokens);
    }
}
