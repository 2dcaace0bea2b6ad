//! Who waits, for how long, and who is refused.

use std::time::{Duration, Instant};

use mlxcel_session::mlxcel_core::reference::ReferenceBackend;
use mlxcel_session::{Engine, EngineOptions, ErrorKind, FinishReason, Options, Request, Share};

use crate::engine::harness::{
    Faulty, PASS, alone, assert_same, begin, begin_at, endless, options, prompt, reference, slow, wait_until,
};

/// Tokens of a request that runs for as long as a test needs it.
const BLOCK: usize = 1000;

/// Options under which nobody pauses for want of a reader, however slowly a test submits the others.
fn unpaused() -> EngineOptions {
    EngineOptions::default().with_unread_tokens(BLOCK)
}

#[test]
fn a_full_queue_rejects_and_accepts_again_when_it_has_room() {
    let engine = Engine::with_options(slow(1), &unpaused().with_queue(2)).unwrap();
    let running = begin(&engine, 0, 4, BLOCK);
    wait_until(&engine, |stats| stats.running == 1);
    let waiting: Vec<_> = (1..3).map(|n| begin(&engine, n, 4, 2)).collect();
    let error = engine.generate_tokens(&prompt(3, 4), &Options::new(2)).unwrap_err();
    assert_eq!((error.kind(), error.context("queue")), (ErrorKind::ResourceExhausted, Some("2")));
    let stats = engine.stats();
    assert_eq!((stats.refused, stats.submitted, stats.queued), (1, 3, 2));

    let tokens = prompt(3, 4);
    let late = Request::new(&tokens).with_options(Options::new(2));
    let start = Instant::now();
    let error = engine.submit_within(late.clone(), Duration::from_millis(20)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
    assert!(start.elapsed() >= Duration::from_millis(20));
    let urgent = late.clone().with_deadline(Instant::now() + Duration::from_millis(20));
    let urgent = engine.submit_within(urgent, Duration::from_secs(20)).unwrap().complete().unwrap();
    assert_eq!(urgent.finish_reason, FinishReason::TimeLimit);
    assert_eq!(engine.stats().finished, 0, "it did not wait for room longer than it may take");
    std::thread::scope(|scope| {
        let patient = scope.spawn(|| engine.submit_within(late, Duration::from_secs(20)).unwrap().complete());
        drop(running);
        assert_eq!(patient.join().unwrap().unwrap().tokens.len(), 2);
    });
    waiting.into_iter().for_each(|stream| assert_eq!(stream.complete().unwrap().tokens.len(), 2));
}

#[test]
fn a_burst_on_an_idle_engine_fills_the_sequences_and_then_the_queue() {
    let engine = Engine::with_options(slow(4), &unpaused().with_queue(1)).unwrap();
    let submit = |n| engine.generate_tokens(&prompt(n, 4), &Options::new(BLOCK));
    let accepted: Vec<_> = (0..5).map(|n| submit(n).unwrap()).collect();
    assert_eq!(submit(5).unwrap_err().kind(), ErrorKind::ResourceExhausted);
    wait_until(&engine, |stats| stats.running == 4 && stats.queued == 1);
    assert_eq!(submit(6).unwrap_err().kind(), ErrorKind::ResourceExhausted);
    // Sequences that were left are free again.
    drop(accepted);
    wait_until(&engine, |stats| stats.running + stats.queued == 0);
    let again: Vec<_> = (0..5).map(|n| submit(n).unwrap()).collect();
    assert_eq!((again.len(), engine.stats().refused), (5, 2));
}

#[test]
fn a_client_with_many_requests_does_not_hold_up_others() {
    for shares in [
        [Share { client: 1, group: 0 }, Share { client: 2, group: 0 }],
        [Share { client: 1, group: 1 }, Share { client: 1, group: 2 }],
    ] {
        let engine = Engine::with_options(slow(4), &unpaused().with_queue(8)).unwrap();
        let model = reference(4);
        let submit = |number, share, tokens| {
            let (prompt, options) = (prompt(number, 4), options(number, tokens));
            engine.submit(Request::new(&prompt).with_options(options).with_share(share))
        };
        let mut many: Vec<_> = (0..4).map(|number| submit(number, shares[0], 400).unwrap()).collect();
        wait_until(&engine, |stats| stats.running == 4);
        many.extend((4..12).map(|number| submit(number, shares[0], 2).unwrap()));
        let fair = shares[0].client != shares[1].client;
        if fair {
            assert_eq!(submit(12, shares[0], 2).unwrap_err().kind(), ErrorKind::ResourceExhausted);
        } else {
            // The queue is divided between clients; this one leaves a place.
            drop(many.pop());
            wait_until(&engine, |stats| stats.queued == 7);
        }
        let one = submit(20, shares[1], 3).unwrap().complete().unwrap();
        assert_same(&one, &alone(&model, &prompt(20, 4), &options(20, 3)));
        let stats = engine.stats();
        assert_eq!((stats.preempted, stats.finished), (1, 1), "nobody else has ended: {stats:?}");
        if fair {
            let displaced = many.pop().unwrap().complete().unwrap_err();
            assert_eq!(displaced.kind(), ErrorKind::ResourceExhausted);
        }
        // The one that gave its sequence up goes on as if nothing had been.
        for (number, stream) in many.into_iter().enumerate().take(4) {
            let number = number as u64;
            let alone = alone(&model, &prompt(number, 4), &options(number, 400));
            assert_same(&stream.complete().unwrap(), &alone);
        }
    }
}

#[test]
fn a_long_prompt_delays_others_by_one_chunk() {
    let faulty = Faulty::new(&endless(&ReferenceBackend::new().with_chunk(16).with_delay(PASS), 8));
    let engine = Engine::new(faulty.model()).unwrap();
    let decoding: Vec<_> = (0..7).map(|n| begin(&engine, n, 2, 60)).collect();
    let long = begin(&engine, 9, 800, 2);
    for stream in decoding {
        assert_eq!(stream.complete().unwrap().tokens.len(), 60);
    }
    assert_eq!(long.complete().unwrap().tokens.len(), 2);
    let steps = faulty.steps.lock().unwrap();
    // No step has more than a chunk beside the rows that decode, and those are in every step of theirs.
    assert!(steps.iter().all(|rows| rows.iter().filter(|&&tokens| tokens > 1).sum::<usize>() <= 16));
    // The prompt advances in each step until its end, however late it came.
    let chunks: Vec<_> =
        (0..steps.len()).filter(|&step| steps[step].iter().any(|&tokens| tokens > 2)).collect();
    assert!(chunks.len() >= 49 && chunks.windows(2).all(|pair| pair[1] == pair[0] + 1), "{steps:?}");
    assert!(steps[chunks[0]].len() > 1, "it is computed beside the others: {steps:?}");
}

#[test]
fn every_request_starts_and_advances_within_bounded_steps() {
    // 40 requests of 8 tokens and prompts of 3 chunks, 4 at a time: ten rounds of 8 steps, and 12 chunks in
    // each.
    let faulty = Faulty::new(&endless(&ReferenceBackend::new().with_chunk(8), 4));
    let engine = Engine::new(faulty.model()).unwrap();
    let streams: Vec<_> = (0..40).map(|n| begin(&engine, n, 24, 8)).collect();
    streams.into_iter().for_each(|stream| assert_eq!(stream.complete().unwrap().tokens.len(), 8));
    let stats = engine.stats();
    assert!(stats.steps <= 10 * (8 + 12), "{stats:?}");
    assert_eq!(stats.computed_tokens, 40 * (24 + 7));
}

#[test]
fn higher_priorities_start_first_and_ties_by_arrival() {
    let faulty = Faulty::new(&slow(1));
    let engine = Engine::with_options(faulty.model(), &unpaused()).unwrap();
    let blocker = begin(&engine, 0, 2, BLOCK);
    wait_until(&engine, |stats| stats.running == 1);
    // The lengths of their prompts tell in which steps they start.
    let streams: Vec<_> = [0, 5, -1, 5, 0]
        .into_iter()
        .zip(10..)
        .map(|(priority, length)| begin_at(&engine, length, length as usize, 2, priority))
        .collect();
    drop(blocker);
    streams.into_iter().for_each(|stream| assert_eq!(stream.complete().unwrap().tokens.len(), 2));
    let steps = faulty.steps.lock().unwrap();
    let started: Vec<_> = steps.iter().flatten().copied().filter(|&tokens| tokens >= 10).collect();
    assert_eq!(started, [11, 13, 10, 14, 12]);
}

#[test]
fn a_request_does_not_wait_for_a_prefix_of_a_lower_priority() {
    let model = endless(&ReferenceBackend::new().with_chunk(16).with_delay(PASS), 3);
    let engine = Engine::new(model).unwrap();
    let submit = |number, priority| begin_at(&engine, number, 800, 1, priority);
    let low = submit(1, 0);
    wait_until(&engine, |stats| stats.computed_tokens > 0);
    // The first one advances only after this one.
    let middle = submit(2, 1);
    let urgent = submit(1, 2);
    assert_eq!(urgent.complete().unwrap().tokens.len(), 1);
    assert_eq!(engine.stats().generated_tokens, 1, "it is the first to end");
    for stream in [middle, low] {
        assert_eq!(stream.complete().unwrap().tokens.len(), 1);
    }
}

#[test]
fn a_slow_reader_pauses_only_its_own_request() {
    for sequences in [1, 2] {
        let model = reference(sequences);
        let options = EngineOptions::default().with_unread_tokens(4);
        let engine = Engine::with_options(model.clone(), &options).unwrap();
        let lazy: Vec<_> = (0..3)
            .map(|n| engine.generate_tokens(&prompt(n, 20), &crate::engine::harness::options(n, 40)).unwrap())
            .collect();
        // They make no progress without a reader; a request with a reader overtakes them.
        for n in 10..13 {
            let stream = begin(&engine, n, 20, 20);
            assert_eq!(stream.complete().unwrap().tokens.len(), 20);
        }
        let steps = wait_until(&engine, |stats| stats.generated_tokens >= 60 + 12).steps;
        std::thread::sleep(Duration::from_millis(50));
        let stats = engine.stats();
        assert_eq!((stats.steps, stats.generated_tokens), (steps, 60 + 12), "nothing is computed unread");
        assert!(stats.preempted > 0 && stats.finished == 3, "{stats:?}");
        for (n, stream) in (0..).zip(lazy) {
            let expected = alone(&model, &prompt(n, 20), &crate::engine::harness::options(n, 40));
            assert_same(&stream.complete().unwrap(), &expected);
        }
    }
}
