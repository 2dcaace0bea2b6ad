//! Short memory, all kinds of ends at once, and many requests in a row.

use std::time::Duration;

use mlxcel_session::mlxcel_core::reference::ReferenceBackend;
use mlxcel_session::{Engine, EngineOptions, ErrorKind, FinishReason, Request};

use crate::engine::harness::{
    Faulty, alone, assert_same, begin, begin_at, endless, options, prompt, reference, wait_until,
};
use crate::support::Chance;

#[test]
fn preempted_requests_generate_the_same_tokens() {
    let sound = reference(8);
    let mut faulty = Faulty::new(&sound);
    // Enough for the longest alone, and for half of them together.
    faulty.memory = 200;
    let engine = Engine::new(faulty.model()).unwrap();
    let streams: Vec<_> = (0..12)
        .map(|n| engine.generate_tokens(&prompt(n, 20 + n as usize), &options(n, 30)).unwrap())
        .collect();
    for (n, stream) in (0..).zip(streams) {
        let expected = alone(&sound, &prompt(n, 20 + n as usize), &options(n, 30));
        assert_same(&stream.complete().unwrap(), &expected);
    }
    let stats = engine.stats();
    assert!(stats.preempted > 0 && stats.finished == 12, "{stats:?}");
    assert!(stats.preempted < 40, "{stats:?}");
}

#[test]
fn the_youngest_request_of_the_lowest_priority_is_preempted() {
    let mut faulty = Faulty::new(&endless(&ReferenceBackend::new().with_delay(Duration::from_millis(1)), 8));
    faulty.memory = 100;
    let engine = Engine::new(faulty.model()).unwrap();
    // Two of 70 tokens do not fit together.
    let (first, urgent) = (begin_at(&engine, 0, 10, 60, 0), begin_at(&engine, 1, 10, 60, 1));
    let urgent = urgent.complete().unwrap();
    assert_eq!(urgent.tokens.len(), 60);
    assert!(engine.stats().preempted > 0 && engine.stats().finished == 1);
    assert_eq!(first.complete().unwrap().tokens.len(), 60);
}

#[test]
fn a_request_that_never_fits_fails_and_others_continue() {
    let mut faulty = Faulty::new(&reference(4));
    faulty.memory = 100;
    let engine = Engine::new(faulty.model()).unwrap();
    let large = begin(&engine, 0, 90, 60);
    let small: Vec<_> = (1..4).map(|n| begin(&engine, n, 20, 40)).collect();
    assert_eq!(large.complete().unwrap_err().kind(), ErrorKind::ResourceExhausted);
    small.into_iter().for_each(|stream| assert_eq!(stream.complete().unwrap().tokens.len(), 40));
}

#[test]
fn kv_usage_is_the_fraction_of_the_tokens_that_sequences_can_hold() {
    let model = reference(4);
    let limit = 2 * model.capabilities().context;
    let options = EngineOptions::default().with_sequences(2).with_unread_tokens(5);
    let engine = Engine::with_options(model, &options).unwrap();
    assert_eq!((engine.stats().kv_token_limit, engine.stats().kv_usage()), (limit, 0.0));
    let streams: Vec<_> = (0..2).map(|n| begin(&engine, n, 20, 100)).collect();
    // The last of five tokens is not computed before the reader has read.
    let stats = wait_until(&engine, |stats| stats.paused == 2);
    assert_eq!((stats.kv_tokens, stats.kv_token_limit), (2 * (20 + 4), limit));
    assert_eq!(stats.kv_usage(), 48.0 / limit as f64);
    drop(streams);
    wait_until(&engine, |stats| stats.running == 0 && stats.kv_tokens == 0);
}

/// One caller of many: whatever it does, its request ends as it should.
fn visit(engine: &Engine, model: &mlxcel_session::Model, n: u64) {
    let mut chance = Chance(n);
    let tokens = prompt(n, 1 + chance.below(120));
    let mut options = options(n, 1 + chance.below(40));
    let expected = alone(model, &tokens, &options);
    let kind = chance.below(5);
    if kind == 1 {
        options = options.with_time_limit(Duration::from_millis(chance.below(15) as u64));
    }
    let request = Request::new(&tokens).with_options(options).with_priority(chance.below(3) as i32);
    let mut stream = engine.submit_within(request, Duration::from_secs(30)).unwrap();
    let some = chance.below(20);
    for _ in 0..some {
        if stream.next_token().transpose().unwrap().is_none() {
            break;
        }
    }
    match kind {
        2 => stream.cancel_token().cancel(),
        3 => return,
        4 => std::thread::sleep(Duration::from_millis(chance.below(5) as u64)),
        _ => {}
    }
    while stream.next_token().transpose().unwrap().is_some() {}
    let (reason, read) = (stream.finish_reason().unwrap(), stream.tokens());
    assert!(expected.tokens.starts_with(read), "nothing is lost or mixed up");
    match kind {
        1 if reason == FinishReason::TimeLimit => {}
        2 if reason == FinishReason::Cancelled => assert!(read.len() >= some.min(expected.tokens.len())),
        _ => assert_eq!((read, reason), (&*expected.tokens, FinishReason::Length)),
    }
}

#[test]
fn sixty_four_mixed_requests_finish_correctly() {
    let sound = reference(8);
    let mut faulty = Faulty::new(&sound);
    faulty.memory = 600;
    let options = EngineOptions::default().with_queue(20).with_unread_tokens(8);
    let engine = Engine::with_options(faulty.model(), &options).unwrap();
    std::thread::scope(|scope| {
        for n in 0..64 {
            let (engine, sound) = (engine.clone(), &sound);
            scope.spawn(move || visit(&engine, sound, n));
        }
    });
    let stats = wait_until(&engine, |stats| stats.running + stats.queued == 0);
    assert_eq!(stats.submitted, 64);
    assert_eq!(stats.finished + stats.cancelled + stats.timed_out, 64, "{stats:?}");
    assert_eq!((stats.failed, stats.kv_bytes), (0, 0), "{stats:?}");
}
