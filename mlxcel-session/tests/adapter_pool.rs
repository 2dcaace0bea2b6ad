//! More adapters than slots: which leave, who waits, and that no text changes.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use mlxcel_core::reference::ReferenceBackend;
use mlxcel_core::{AdapterLimits, Backend, ErrorKind, LoadOptions};
use mlxcel_session::{Adapter, AdapterPool, CancelToken, Engine, Model, Options, Result, TokenId};

use crate::support::cancelled;

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(600);

fn model(slots: usize) -> Model {
    let room = LoadOptions::default().with_adapters(AdapterLimits::new(slots, 4));
    Model::from_parts(ReferenceBackend::new().load(&ReferenceBackend::source(), &room).unwrap(), None)
}

/// A pool of the adapters 1 to `adapters`.
fn pool(model: &Model, adapters: u64) -> AdapterPool {
    let pool = AdapterPool::new(model).unwrap();
    for number in 1..=adapters {
        pool.add(&number.to_string(), ReferenceBackend::adapter(number)).unwrap();
    }
    pool
}

fn acquire(pool: &AdapterPool, name: &str, patience: Duration) -> Result<Adapter> {
    pool.acquire(name, patience, &CancelToken::new())
}

/// The names of those that have a slot.
fn loaded(pool: &AdapterPool) -> Vec<String> {
    pool.list().into_iter().filter(|adapter| adapter.is_loaded).map(|adapter| adapter.name).collect()
}

#[test]
fn the_least_recently_used_adapter_that_nobody_needs_leaves() {
    let pool = pool(&model(2), 3);
    assert_eq!(loaded(&pool), ["2", "3"]);
    let held = acquire(&pool, "2", LONG).unwrap();
    drop(acquire(&pool, "3", LONG).unwrap());
    // The second is the least recently used one, and needed.
    drop(acquire(&pool, "1", LONG).unwrap());
    assert_eq!(loaded(&pool), ["1", "2"]);
    drop(held);
    let third = acquire(&pool, "3", LONG).unwrap();
    assert_eq!(loaded(&pool), ["1", "3"]);
    assert_eq!(third, acquire(&pool, "3", Duration::ZERO).unwrap());
}

#[test]
fn without_an_idle_slot_a_call_is_refused_when_its_patience_is_over() {
    let pool = pool(&model(1), 2);
    let held = acquire(&pool, "1", LONG).unwrap();
    let error = acquire(&pool, "2", Duration::from_millis(1)).unwrap_err();
    assert_eq!(
        (error.kind(), error.context("adapter"), error.context("slots")),
        (ErrorKind::ResourceExhausted, Some("2"), Some("1"))
    );
    // It takes requests again after the one that waited is gone.
    assert_eq!(pool.loaded("1").unwrap().as_ref(), Some(&held));
    assert_eq!(pool.acquire("2", LONG, &cancelled()).unwrap_err().kind(), ErrorKind::Cancelled);
    // Slots that the application takes itself are waited for too.
    pool.remove("1").unwrap();
    assert_eq!(
        acquire(&pool, "2", Duration::from_millis(1)).unwrap_err().kind(),
        ErrorKind::ResourceExhausted
    );
    thread::scope(|scope| {
        let waiting = scope.spawn(|| acquire(&pool, "2", LONG).unwrap());
        drop(held);
        assert_eq!(waiting.join().unwrap().identity(), "adapter-2");
    });
}

#[test]
fn a_call_that_waits_gets_the_slot_of_an_adapter_in_constant_use() {
    let pool = pool(&model(1), 2);
    let (done, requests) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        // Two threads of which one always needs the first.
        for _ in 0..2 {
            scope.spawn(|| {
                let mut held = acquire(&pool, "1", LONG).unwrap();
                while !done.load(Ordering::SeqCst) {
                    requests.fetch_add(1, Ordering::SeqCst);
                    // Taken before the old one is dropped, if it takes requests.
                    match pool.loaded("1").unwrap() {
                        Some(next) => held = next,
                        None => {
                            drop(held);
                            held = acquire(&pool, "1", LONG).unwrap();
                        }
                    }
                }
            });
        }
        while requests.load(Ordering::SeqCst) < 10 {
            thread::yield_now();
        }
        let second = acquire(&pool, "2", LONG).unwrap();
        assert_eq!(second.identity(), "adapter-2");
        drop(second);
        done.store(true, Ordering::SeqCst);
    });
}

#[test]
fn names_are_checked_and_removed_adapters_are_gone() {
    let model = model(2);
    let pool = pool(&model, 1);
    let taken = pool.add("1", ReferenceBackend::adapter(2)).unwrap_err();
    assert_eq!((taken.kind(), taken.context("adapter")), (ErrorKind::InvalidInput, Some("1")));
    for name in ["", "a b", "a\n", &"a".repeat(257)] {
        let error = pool.add(name, ReferenceBackend::adapter(2)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name:?}");
    }
    assert!(pool.add("none", "no/such/folder").is_err() && !pool.contains("none"));
    let held = acquire(&pool, "1", LONG).unwrap();
    pool.remove("1").unwrap();
    for error in
        [pool.remove("1").unwrap_err(), acquire(&pool, "1", LONG).unwrap_err(), pool.loaded("1").unwrap_err()]
    {
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
    // Another one of this name is another adapter, and the old one keeps its slot as long as it is needed.
    pool.add("1", ReferenceBackend::adapter(2)).unwrap();
    pool.add("2", ReferenceBackend::adapter(3)).unwrap();
    assert_eq!(loaded(&pool), ["2"]);
    assert_eq!(acquire(&pool, "1", LONG).unwrap().identity(), "adapter-2");
    assert_eq!(held.identity(), "adapter-1");
    let plain = Model::from_parts(ReferenceBackend::new().model().unwrap(), None);
    assert_eq!(AdapterPool::new(&plain).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn requests_with_more_adapters_than_slots_have_the_texts_of_their_adapters() {
    let model = model(2);
    let prompt: Vec<TokenId> = (0..40).map(|index| 3 + index * 7 % 60).collect();
    let options = Options::new(12).with_ignore_stop(true);
    let expected = [1, 2, 3, 4, 5].map(|number| {
        let adapter = model.load_adapter(ReferenceBackend::adapter(number)).unwrap();
        let stream = model.generate_tokens(&prompt, &options.clone().with_adapter(&adapter)).unwrap();
        stream.complete().unwrap().tokens
    });
    let (pool, engine) = (pool(&model, 5), Engine::new(model.clone()).unwrap());
    thread::scope(|scope| {
        for thread in 0..4 {
            let (pool, engine, expected, prompt, options) = (&pool, &engine, &expected, &prompt, &options);
            scope.spawn(move || {
                for round in 0..25 {
                    let number = (thread * 3 + round * 2) % 5;
                    let adapter = acquire(pool, &(number + 1).to_string(), LONG).unwrap();
                    let stream =
                        engine.generate_tokens(prompt, &options.clone().with_adapter(&adapter)).unwrap();
                    drop(adapter);
                    assert_eq!(stream.complete().unwrap().tokens, expected[number], "{thread}, {round}");
                }
            });
        }
    });
    assert_eq!(engine.adapter_stats().iter().map(|stats| stats.requests).sum::<u64>(), 100);
}
