//! What the engine costs for each token of each request, beside the model: `cargo bench -p mlxcel-session
//! --bench driver`.
//!
//! The reference engine with a recurrence computes a token in about a microsecond. The same tokens are
//! computed by a loop over `InferenceSession::decode_step`, by a `TextStream` each in turn, and by an
//! `Engine` with a reading thread for each request; what is more than the loop is the driver. With a
//! tokenizer, decoding text is in it. It counts the time of processors, on all threads, so that other
//! programs disturb it less.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use std::time::Duration;

use mlxcel_session::mlxcel_core::reference::ReferenceBackend;
use mlxcel_session::mlxcel_core::{Backend, Control, InferenceSessionExt, Row, SamplingPlan, SessionOptions};
use mlxcel_session::{Engine, LoadOptions, Model, Options, TokenId, Tokenizer};
use rustix::time::{ClockId, clock_gettime};

const TOKENS: usize = 200;
const ROUNDS: usize = 15;
const PROMPT: [TokenId; 4] = [5, 6, 7, 8];

fn main() {
    let bundled = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/models/storyteller");
    println!(
        "microseconds of processors a token and request, the best of {ROUNDS} rounds of {TOKENS} tokens"
    );
    println!("{:>8} {:>6} {:>8} {:>8} {:>8}   driver", "requests", "text", "loop", "stream", "engine");
    for text in [false, true] {
        for requests in [1, 8, 64] {
            let tokenizer = text.then(|| Tokenizer::open(bundled).unwrap());
            let backend = ReferenceBackend::new().with_stop_tokens([]).with_recurrence();
            let load = LoadOptions::default().with_sequences(requests);
            let model = backend.load(&ReferenceBackend::source(), &load).unwrap();
            let model = Model::from_parts(model, tokenizer);
            let engine = Engine::new(model.clone()).unwrap();
            let each = |round: &dyn Fn() -> Duration| {
                let best = (0..ROUNDS).map(|_| round()).min().unwrap_or_default();
                best.as_secs_f64() * 1e6 / (TOKENS * requests) as f64
            };
            let by_loop = each(&|| run_loop(&model, requests));
            let by_stream = each(&|| run_streams(&model, requests));
            let by_engine = each(&|| run_engine(&engine, requests));
            let driver = by_engine - by_loop;
            println!(
                "{requests:>8} {text:>6} {by_loop:>8.2} {by_stream:>8.2} {by_engine:>8.2} {driver:>8.2}"
            );
        }
    }
}

fn run_loop(model: &Model, requests: usize) -> Duration {
    let mut session = model.engine().open_session(&SessionOptions::default()).unwrap();
    let (plan, control) = (SamplingPlan::greedy(), Control::default());
    let mut rows: Vec<_> = (0..requests)
        .map(|_| {
            let sequence = session.open().unwrap();
            let result = session.run_row(Row::next(sequence, &PROMPT, &plan), &control).unwrap();
            (sequence, result.into_token().unwrap().token)
        })
        .collect();
    let start = used();
    for _ in 0..TOKENS {
        let tokens = session.decode_step(&rows, &plan, &control).unwrap();
        rows.iter_mut().zip(tokens).for_each(|(row, token)| row.1 = token.unwrap().token);
    }
    used() - start
}

fn run_streams(model: &Model, requests: usize) -> Duration {
    let start = used();
    for _ in 0..requests {
        model.generate_tokens(&PROMPT, &options()).unwrap().complete().unwrap();
    }
    used() - start
}

fn run_engine(engine: &Engine, requests: usize) -> Duration {
    let start = used();
    std::thread::scope(|scope| {
        for _ in 0..requests {
            let stream = engine.generate_tokens(&PROMPT, &options()).unwrap();
            scope.spawn(move || assert_eq!(stream.complete().unwrap().tokens.len(), TOKENS));
        }
    });
    used() - start
}

/// The time that this process has used of all processors.
fn used() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap()
}

fn options() -> Options {
    Options::new(TOKENS).with_ignore_stop(true)
}
