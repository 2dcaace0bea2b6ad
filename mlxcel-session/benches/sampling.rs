//! The host's cost of one token of a vocabulary of 128,256: `cargo bench -p mlxcel-session --bench sampling`.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use mlxcel_session::mlxcel_core::Distribution;
use mlxcel_session::{HostSampler, LogitsSampler, SamplingContext, SamplingParams};

const ROUNDS: usize = 51;

/// What is measured, by name.
type Row<'a> = (&'static str, Box<dyn Fn() + 'a>);

fn main() {
    // A few likely tokens and a long tail.
    let logit = |token: u32| (token.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 21) as f32;
    let logits: Vec<f32> = (0..128_256).map(logit).collect();
    let drawn = || SamplingParams::greedy().with_temperature(0.8);
    let sampler = |params| HostSampler::new(params).unwrap();
    let sample = |sampler: HostSampler, top: u16| {
        let logits = &logits;
        move || {
            let mut context = SamplingContext::new(&[1, 2], 1);
            context.top = top;
            drop(black_box(sampler.sample(black_box(logits), &context)));
        }
    };
    let rows: [Row<'_>; 9] = [
        ("check of logits", Box::new(|| drop(black_box(Distribution::check(black_box(&logits)))))),
        ("log-softmax", Box::new(|| drop(black_box(Distribution::new(black_box(&logits)))))),
        (
            "score of a position",
            Box::new(|| drop(black_box(Distribution::new(black_box(&logits)).unwrap().position(Some(7), 0)))),
        ),
        (
            "score, 20 most likely",
            Box::new(|| {
                drop(black_box(Distribution::new(black_box(&logits)).unwrap().position(Some(7), 20)))
            }),
        ),
        ("greedy", Box::new(sample(sampler(SamplingParams::greedy()), 0))),
        ("temperature", Box::new(sample(sampler(drawn()), 0))),
        ("temperature, 20 most likely", Box::new(sample(sampler(drawn()), 20))),
        ("top-k 40", Box::new(sample(sampler(drawn().with_top_k(40)), 0))),
        ("top-p 0.9", Box::new(sample(sampler(drawn().with_top_p(0.9)), 0))),
    ];
    println!("microseconds a token, the median of {ROUNDS} rounds");
    let mut times = vec![Vec::new(); rows.len()];
    for _ in 0..ROUNDS {
        for ((_, run), times) in rows.iter().zip(&mut times) {
            let start = Instant::now();
            run();
            times.push(start.elapsed());
        }
    }
    for ((name, _), mut times) in rows.iter().zip(times) {
        times.sort();
        let median: Duration = times[ROUNDS / 2];
        println!("{name:>28} {:>8.0}", median.as_secs_f64() * 1e6);
    }
}
