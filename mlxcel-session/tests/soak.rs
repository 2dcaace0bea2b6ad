//! Many requests in a row, in a process of their own, whose memory is looked at.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

#[path = "engine/harness.rs"]
mod harness;

use std::collections::VecDeque;
use std::time::Duration;

use harness::{options, prompt, reference, wait_until};
use mlxcel_session::{Engine, EngineOptions, Request};

/// The memory of this process that is in use, in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}

/// Serves `count` requests, some at once, and returns the memory growth after the first hundred.
fn serve_in_a_row(count: u64) -> usize {
    let model = reference(4);
    let engine = Engine::with_options(model.clone(), &EngineOptions::default().with_queue(8)).unwrap();
    let mut before = 0;
    let mut running = VecDeque::new();
    for n in 0..count {
        let (tokens, options) = (prompt(n, 1 + (n as usize * 7) % 50), options(n, 1 + n as usize % 12));
        let request = Request::new(&tokens).with_options(options.clone());
        running.push_back((n, engine.submit_within(request, Duration::from_secs(30)).unwrap()));
        if running.len() == 6 {
            let (n, stream) = running.pop_front().unwrap();
            match n % 10 {
                3 => drop(stream),
                5 => stream.cancel_token().cancel(),
                _ => assert_eq!(stream.complete().unwrap().tokens.len(), 1 + n as usize % 12),
            }
        }
        if n == 100 {
            before = resident();
        }
    }
    drop(running);
    let stats = wait_until(&engine, |stats| stats.running + stats.queued == 0);
    assert_eq!((stats.submitted, stats.failed), (count, 0));
    assert_eq!(stats.finished + stats.cancelled, count);
    resident().saturating_sub(before)
}

#[test]
fn thousands_of_requests_leak_nothing() {
    let grown = serve_in_a_row(5000);
    assert!(grown < 1 << 20, "{grown} bytes more");
}
