//! A request says the same alone and in any batch.

use mlxcel_session::mlxcel_core::reference::ReferenceBackend;
use mlxcel_session::{
    Capabilities, Engine, EngineOptions, FinishReason, Model, Options, PrefixCache, Request,
};

use crate::engine::harness::{Faulty, alone, assert_same, endless, options, prompt, reference};
use crate::support::{Scripted, oracle};

/// Runs `count` requests at once and compares each with itself alone.
fn compare(model: &Model, engine_options: &EngineOptions, count: u64) {
    let engine = Engine::with_options(model.clone(), engine_options).unwrap();
    let requests: Vec<_> = (0..count)
        .map(|n| (prompt(n, 1 + (n as usize * 13) % 70), options(n, 5 + n as usize % 20)))
        .collect();
    let streams: Vec<_> =
        requests.iter().map(|(prompt, options)| engine.generate_tokens(prompt, options).unwrap()).collect();
    for (stream, (prompt, options)) in streams.into_iter().zip(&requests) {
        assert_same(&stream.complete().unwrap(), &alone(model, prompt, options));
    }
    let stats = engine.stats();
    assert_eq!((stats.submitted, stats.finished, stats.failed), (count, count, 0));
    assert_eq!((stats.queued, stats.running, stats.kv_bytes), (0, 0, 0));
}

#[test]
fn texts_are_equal_in_batches_of_1_8_and_64() {
    for (sequences, count) in [(1, 3), (8, 9), (8, 65), (65, 65)] {
        compare(&reference(sequences), &EngineOptions::default(), count);
    }
}

#[test]
fn texts_are_equal_for_any_token_budget_and_chunk_size() {
    for (chunk, step_tokens) in [(1, 9), (5, 9), (16, 500), (64, 30)] {
        let model = endless(&ReferenceBackend::new().with_chunk(chunk), 8);
        compare(&model, &EngineOptions::default().with_step_tokens(step_tokens), 20);
    }
}

#[test]
fn texts_are_equal_for_windowed_and_recurrent_models() {
    let backend = ReferenceBackend::new();
    for backend in [backend.clone().with_window(9), backend.with_recurrence()] {
        compare(&endless(&backend, 8), &EngineOptions::default(), 20);
    }
}

#[test]
fn a_single_sequence_engine_generates_the_oracles_texts() {
    let model = Scripted::oracle().model();
    let engine = Engine::new(model).unwrap();
    let streams: Vec<_> = oracle()
        .into_iter()
        .map(|case| {
            let request = Request::new(case.input()).with_options(Options::new(case.greedy.len()));
            let stream = engine.submit(request).unwrap();
            (case, stream)
        })
        .collect();
    for (case, mut stream) in streams {
        assert_eq!(stream.prompt_tokens(), case.prompt.len());
        let pieces: Vec<String> = stream.by_ref().map(Result::unwrap).collect();
        assert!(pieces.iter().all(|piece| !piece.is_empty()));
        assert_eq!(pieces.concat(), case.completion);
        assert_eq!(stream.tokens().len(), stream.logprobs().len());
        assert!(stream.finish_reason().is_some() && stream.next().is_none());
    }
}

#[test]
fn stop_strings_and_withheld_text_are_delivered() {
    let case = &oracle()[0];
    let engine = Engine::new(Scripted::oracle().model()).unwrap();
    let word = case.completion.split_whitespace().nth(5).unwrap();
    let options = Options::default().with_stop_string(word);
    let completion = engine.generate_tokens(&case.prompt, &options).unwrap().complete().unwrap();
    assert_eq!(completion.text, case.completion.split(word).next().unwrap());
    assert_eq!(completion.stop_string.as_deref(), Some(word));
    assert_eq!(completion.finish_reason, FinishReason::StopString);
    let same = engine.model().generate_tokens(&case.prompt, &options).unwrap().complete().unwrap();
    assert_same(&completion, &same);
}

#[test]
fn top_logprobs_and_usage_are_reported() {
    let model = reference(4);
    let engine = Engine::new(model.clone()).unwrap();
    let options = Options::new(6).with_top_logprobs(3);
    let completion = engine.generate_tokens(&prompt(1, 40), &options).unwrap().complete().unwrap();
    let alone = alone(&model, &prompt(1, 40), &options);
    assert_same(&completion, &alone);
    assert_eq!(completion.top_logprobs, alone.top_logprobs);
    assert!(completion.top_logprobs.iter().all(|top| top.len() == 3));
    let usage = completion.usage;
    assert_eq!((usage.prompt_tokens, usage.generated_tokens), (40, 6));
    assert!(usage.time_to_first_token.unwrap() >= usage.queued);
}

#[cfg(feature = "portable")]
#[test]
fn the_bundled_model_generates_the_same_tokens_batched_and_alone() {
    use mlxcel_session::{LoadOptions, OpenOptions, Precision};
    let load = LoadOptions::default().with_sequences(4).with_precision(Precision::Exact);
    let options = OpenOptions::default().with_backend("portable").with_load(load);
    let model = Model::open_with(crate::support::storyteller(), &options).unwrap();
    let engine = Engine::new(model.clone()).unwrap();
    let texts = ["Once upon a time", "There was a fox named Pip.", "The", "A cat and a dog", "Mia"];
    let requests: Vec<_> =
        texts.into_iter().zip((0..).map(|n| crate::engine::harness::options(n, 12))).collect();
    let streams: Vec<_> =
        requests.iter().map(|(text, options)| engine.generate(text, options).unwrap()).collect();
    for (stream, (text, options)) in streams.into_iter().zip(&requests) {
        let (many, one) =
            (stream.complete().unwrap(), model.generate(text, options).unwrap().complete().unwrap());
        assert_eq!((many.text, many.tokens), (one.text, one.tokens));
    }
}

#[test]
fn texts_are_equal_when_threads_share_host_sampling() {
    let capabilities = Capabilities::new(8, 1024).with_batch_rows(8).with_prompt_chunk(16).with_logits(true);
    let backend = ReferenceBackend::new().with_vocabulary(20_000).with_recurrence();
    let model = endless(&backend.with_capabilities(capabilities), 8);
    compare(&model, &EngineOptions::default(), 8);
}

/// Requests that begin with the same 100 tokens and go on differently.
fn with_common_beginning(count: u64) -> Vec<(Vec<u32>, Options)> {
    (0..count).map(|n| ([prompt(99, 100), prompt(n, 1 + n as usize)].concat(), options(n, 10))).collect()
}

#[test]
fn a_shared_prefix_is_computed_once_for_concurrent_requests() {
    let model = reference(8);
    let observed = Faulty::new(&model);
    let engine = Engine::new(observed.model()).unwrap();
    let requests = with_common_beginning(20);
    let streams: Vec<_> = {
        // The first step waits until all requests are there: one that arrives after the others have ended
        // shares nothing.
        let _held = observed.steps.lock().unwrap();
        requests.iter().map(|(prompt, options)| engine.generate_tokens(prompt, options).unwrap()).collect()
    };
    let mut reused = 0;
    for (stream, (prompt, options)) in streams.into_iter().zip(&requests) {
        let completion = stream.complete().unwrap();
        assert_same(&completion, &alone(&model, prompt, options));
        reused += completion.usage.reused_tokens;
    }
    let stats = engine.stats();
    assert!(reused >= 100 * 19, "{stats:?}");
    assert_eq!(reused as u64, stats.reused_tokens);
    let all: usize = requests.iter().map(|(prompt, _)| prompt.len() + 9).sum();
    assert_eq!(stats.computed_tokens as usize, all - reused, "{stats:?}");
}

#[test]
fn a_prefix_cache_works_with_every_kind_of_state() {
    let backend = ReferenceBackend::new();
    for backend in [backend.clone(), backend.clone().with_window(9), backend.with_recurrence()] {
        let sound = endless(&backend, 4);
        let cache = PrefixCache::new(1 << 20);
        let engine = Engine::new(sound.clone().with_prefix_cache(cache.clone())).unwrap();
        for (prompt, options) in with_common_beginning(6) {
            let completion = engine.generate_tokens(&prompt, &options).unwrap().complete().unwrap();
            assert_same(&completion, &alone(&sound, &prompt, &options));
        }
        let stats = engine.stats();
        // States that cannot be rewound are reused from the third on.
        assert!(stats.reused_tokens >= 4 * 100, "{stats:?}");
        assert!(cache.stats().hits >= 4 && cache.stats().bytes <= 1 << 20);
    }
}
