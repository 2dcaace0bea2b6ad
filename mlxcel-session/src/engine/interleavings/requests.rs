//! Requests of several threads on an engine: whole engines, on the reference model.

use std::time::Duration;

use mlxcel_core::reference::ReferenceBackend;
use mlxcel_core::{
    Backend, CancelToken, Control, ErrorKind, FinishReason, InferenceSessionExt, LoadOptions, Result, Row,
    SessionOptions, TokenId,
};

use super::panicking::Panicking;
use crate::engine::{Engine, EngineOptions, EngineStats, Request, RequestStream, Share};
use crate::model::Model;
use crate::options::Options;
use crate::prefix::PrefixCache;
use crate::score::ScoreOptions;
use crate::stream::Completion;
use crate::sync::thread::JoinHandle;
use crate::sync::{FOREVER, explore, thread};

/// The reference model with this many sequences and no stop token: its texts always reach the token limit.
fn reference(sequences: usize) -> Model {
    let backend = ReferenceBackend::new().with_stop_tokens([]);
    let options = LoadOptions::default().with_sequences(sequences);
    Model::from_parts(backend.load(&ReferenceBackend::source(), &options).unwrap(), None)
}

/// A prompt that has its first `common` tokens in common with those of all other numbers.
fn prompt(number: u32, common: usize, length: usize) -> Vec<TokenId> {
    (0..length as u32).map(|i| if (i as usize) < common { i % 50 + 1 } else { 51 + number }).collect()
}

/// What a request generates in a session of its own.
fn alone(model: &Model, prompt: &[TokenId], tokens: usize) -> Vec<TokenId> {
    model.generate_tokens(prompt, &Options::new(tokens)).unwrap().complete().unwrap().tokens
}

fn submit(engine: &Engine, prompt: &[TokenId], tokens: usize, client: u64) -> Result<RequestStream> {
    let share = Share { client, group: 0 };
    engine.submit(Request::new(prompt).with_options(Options::new(tokens)).with_share(share))
}

/// Submits and reads requests with the first numbers, each on a thread that waits for room in the queue.
fn submit_each(
    engine: &Engine,
    requests: u32,
    tokens: usize,
    patience: fn(u32) -> Duration,
) -> Vec<JoinHandle<Result<Completion>>> {
    let submit = |number| {
        let engine = engine.clone();
        thread::spawn(move || {
            let prompt = prompt(number, 0, 2);
            let request = Request::new(&prompt).with_options(Options::new(tokens));
            engine.submit_within(request, patience(number)).and_then(RequestStream::complete)
        })
    };
    (0..requests).map(submit).collect()
}

/// What those requests generate, each in a session of its own.
fn each_alone(model: &Model, requests: u32, tokens: usize) -> Vec<Vec<TokenId>> {
    (0..requests).map(|number| alone(model, &prompt(number, 0, 2), tokens)).collect()
}

/// How many of these requests were refused for want of room; the others must have generated what is expected.
fn refused(results: impl IntoIterator<Item = Result<Completion>>, expected: &[Vec<TokenId>]) -> u64 {
    let mut refused = 0;
    for (result, expected) in results.into_iter().zip(expected) {
        match result {
            Ok(done) => assert_eq!(&done.tokens, expected),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
                refused += 1;
            }
        }
    }
    refused
}

/// An engine with one sequence and a queue of this length.
fn queueing(model: &Model, queue: usize) -> Engine {
    Engine::with_options(model.clone(), &EngineOptions::default().with_queue(queue)).unwrap()
}

/// Whether every request that was taken has ended, and nothing is left of them.
fn assert_over(stats: &EngineStats, submitted: u64) {
    assert_eq!(stats.submitted, submitted);
    assert_eq!(stats.finished + stats.cancelled + stats.failed, submitted, "{stats:?}");
    assert_eq!((stats.queued, stats.running, stats.kv_tokens), (0, 0, 0), "{stats:?}");
}

#[test]
fn a_request_that_is_cancelled_while_it_finishes_ends_once() {
    let model = reference(2);
    let tokens = prompt(0, 0, 3);
    let expected = alone(&model, &tokens, 4);
    explore(3000, move || {
        let engine = Engine::new(model.clone()).unwrap();
        let stream = submit(&engine, &tokens, 4, 0).unwrap();
        let cancel = stream.cancel_token();
        let other = thread::spawn(move || cancel.cancel());
        let done = stream.complete().unwrap();
        match done.finish_reason {
            FinishReason::Length => assert_eq!(done.tokens, expected),
            FinishReason::Cancelled => assert!(expected.starts_with(&done.tokens)),
            other => panic!("{other:?}"),
        }
        other.join().unwrap();
        assert_over(&engine.stats(), 1);
    });
}

#[test]
fn requests_that_wait_for_room_in_the_queue_all_get_it() {
    let model = reference(1);
    let expected = each_alone(&model, 3, 2);
    explore(3000, move || {
        let engine = queueing(&model, 1);
        let threads = submit_each(&engine, 3, 2, |_| FOREVER);
        assert_eq!(refused(threads.into_iter().map(|thread| thread.join().unwrap()), &expected), 0);
        assert_over(&engine.stats(), 3);
    });
}

#[test]
fn a_request_is_refused_or_runs_to_its_end() {
    let model = reference(1);
    let expected = each_alone(&model, 4, 2);
    explore(3000, move || {
        let engine = queueing(&model, 1);
        // Limits that pass at any time.
        let threads = submit_each(&engine, 4, 2, |number| Duration::from_millis(u64::from(number % 2)));
        let refused = refused(threads.into_iter().map(|thread| thread.join().unwrap()), &expected);
        assert!(refused <= 2, "one runs and one waits");
        assert_eq!(engine.stats().refused, refused);
        assert_over(&engine.stats(), 4 - refused);
    });
}

#[test]
fn the_client_with_the_longest_queue_makes_room_for_another() {
    let model = reference(1);
    let expected = each_alone(&model, 4, 2);
    explore(3000, move || {
        let engine = queueing(&model, 2);
        // One that runs or is about to, and two that wait.
        let many: Vec<_> =
            (0..3).map(|number| submit(&engine, &prompt(number, 0, 2), 2, 1).unwrap()).collect();
        let other = {
            let engine = engine.clone();
            thread::spawn(move || submit(&engine, &prompt(3, 0, 2), 2, 2).unwrap().complete().unwrap().tokens)
        };
        assert!(refused(many.into_iter().map(RequestStream::complete), &expected) <= 1);
        assert_eq!(other.join().unwrap(), expected[3]);
        assert_over(&engine.stats(), 4);
    });
}

#[test]
fn shutdown_ends_those_that_wait_for_room() {
    let model = reference(1);
    let expected = each_alone(&model, 3, 3);
    explore(3000, move || {
        let engine = queueing(&model, 1);
        let threads = submit_each(&engine, 3, 3, |_| FOREVER);
        // A limit that passes at any time, or none.
        let ended = engine.shutdown(Duration::from_millis(1));
        assert_eq!(engine.check().unwrap_err().kind(), ErrorKind::Cancelled);
        let mut taken = 0;
        for (thread, expected) in threads.into_iter().zip(&expected) {
            match thread.join().unwrap() {
                Ok(Completion { tokens, finish_reason: reason, .. }) => {
                    taken += 1;
                    assert!(expected.starts_with(&tokens));
                    let is_whole = reason == FinishReason::Length;
                    assert!(is_whole || reason == FinishReason::Cancelled && !ended, "{reason:?}");
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::Cancelled),
            }
        }
        assert_over(&engine.stats(), taken);
    });
}

#[test]
fn two_shutdowns_at_once_both_return() {
    let model = reference(1);
    explore(3000, move || {
        let engine = Engine::new(model.clone()).unwrap();
        let stream = submit(&engine, &prompt(0, 0, 2), 2, 0).unwrap();
        let other = {
            let engine = engine.clone();
            thread::spawn(move || engine.shutdown(Duration::ZERO))
        };
        engine.shutdown(FOREVER);
        other.join().unwrap();
        let reason = stream.complete().unwrap().finish_reason;
        assert!(matches!(reason, FinishReason::Length | FinishReason::Cancelled));
        assert_over(&engine.stats(), 1);
    });
}

#[test]
fn the_thread_ends_with_the_last_handle_whichever_that_is() {
    let model = reference(2);
    let expected = alone(&model, &prompt(0, 0, 2), 2);
    explore(3000, move || {
        let engine = Engine::new(model.clone()).unwrap();
        let (first, second) =
            (submit(&engine, &prompt(0, 0, 2), 2, 0), submit(&engine, &prompt(1, 0, 2), 2, 0));
        let threads = [
            thread::spawn(move || drop(engine)),
            // A reader that leaves early.
            thread::spawn(move || drop(second.unwrap().next_token())),
        ];
        assert_eq!(first.unwrap().complete().unwrap().tokens, expected);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn a_copy_of_a_running_sequence_is_independent_of_its_end() {
    let model = reference(2);
    let prompts: Vec<_> = (0..3).map(|number| prompt(number, 36, 38)).collect();
    let expected: Vec<_> = prompts.iter().map(|prompt| alone(&model, prompt, 3)).collect();
    explore(2000, move || {
        let engine = Engine::new(model.clone()).unwrap();
        let cancel = CancelToken::new();
        let threads: Vec<_> = (0..3)
            .map(|number| {
                let (engine, cancel, prompt) = (engine.clone(), cancel.clone(), prompts[number].clone());
                thread::spawn(move || {
                    let mut stream = submit(&engine, &prompt, 3, 0).unwrap();
                    if number == 0 {
                        // The sequence that others copy is freed while they do.
                        stream.next_token();
                        stream.cancel_token().cancel();
                        cancel.cancel();
                    }
                    stream.complete().unwrap().tokens
                })
            })
            .collect();
        for (number, (thread, expected)) in threads.into_iter().zip(&expected).enumerate() {
            let tokens = thread.join().unwrap();
            assert!(tokens == *expected || number == 0 && expected.starts_with(&tokens), "{number}");
        }
        assert!(cancel.is_cancelled());
        assert_over(&engine.stats(), 3);
    });
}

#[test]
fn a_prefix_is_reused_while_another_engine_evicts_it() {
    let model = reference(1);
    let prompts: Vec<_> = (0..3).map(|number| prompt(number, 18, 20)).collect();
    let expected: Vec<_> = prompts.iter().map(|prompt| alone(&model, prompt, 2)).collect();
    // For about one entry.
    let budget = {
        let mut session = model.engine().open_session(&SessionOptions::default()).unwrap();
        let sequence = session.open().unwrap();
        session.run_row(Row::extend(sequence, &prompts[0]), &Control::default()).unwrap();
        session.snapshot(sequence).unwrap().payload().len() as u64 * 3 / 2
    };
    explore(2000, move || {
        let cache = PrefixCache::new(budget);
        let model = model.clone().with_prefix_cache(cache.clone());
        let engines = [Engine::new(model.clone()).unwrap(), Engine::new(model).unwrap()];
        let threads: Vec<_> = (0..3)
            .map(|number| {
                let (engine, prompt) = (engines[number % 2].clone(), prompts[number].clone());
                thread::spawn(move || submit(&engine, &prompt, 2, 0).unwrap().complete().unwrap().tokens)
            })
            .collect();
        let stats = cache.stats();
        assert!(stats.bytes <= budget, "{stats:?}");
        cache.clear();
        for (thread, expected) in threads.into_iter().zip(&expected) {
            assert_eq!(&thread.join().unwrap(), expected);
        }
        drop(engines);
        let stats = cache.stats();
        assert!(stats.bytes <= budget && stats.entries <= 1, "{stats:?}");
        assert_eq!(stats.hits + stats.misses, 3);
    });
}

#[test]
fn a_panic_of_the_model_ends_every_reader_and_every_wait() {
    let sound = reference(1);
    explore(3000, move || {
        let model = Model::from_parts(Panicking::at_step(&sound, 3), None);
        let engine = queueing(&model, 1);
        let mut failed = 0;
        for thread in submit_each(&engine, 3, 3, |_| FOREVER) {
            if let Err(error) = thread.join().unwrap() {
                assert_eq!(error.kind(), ErrorKind::Internal);
                failed += 1;
            }
        }
        // The step with the third number is the last of the first request or one of the second.
        assert!(failed >= 2);
        assert_eq!(engine.check().unwrap_err().kind(), ErrorKind::Internal);
        engine.shutdown(FOREVER);
    });
}

#[test]
fn texts_get_a_result_or_are_cancelled_by_a_shutdown() {
    let model = reference(2);
    let texts = vec![prompt(0, 0, 4), prompt(1, 0, 3)];
    let options = ScoreOptions::default();
    let expected = model.score_all_tokens(&texts, &options).unwrap();
    explore(3000, move || {
        let engine = Engine::new(model.clone()).unwrap();
        let stream = submit(&engine, &prompt(2, 0, 2), 2, 0).unwrap();
        let scored = {
            let (engine, texts) = (engine.clone(), texts.clone());
            thread::spawn(move || engine.score_all_tokens(&texts, &ScoreOptions::default()))
        };
        engine.shutdown(Duration::from_millis(1));
        match scored.join().unwrap() {
            Ok(scores) => assert_eq!(scores, expected),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Cancelled),
        }
        let reason = stream.complete().unwrap().finish_reason;
        assert!(matches!(reason, FinishReason::Length | FinishReason::Cancelled));
    });
}
