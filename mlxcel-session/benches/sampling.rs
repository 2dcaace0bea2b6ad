//! The host's cost of one token of a vocabulary of 128,256: `cargo bench -p mlxcel-session --bench sampling`.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use std::f32::consts::TAU;
use std::hint::black_box;
use std::time::{Duration, Instant};

use mlxcel_session::mlxcel_core::Distribution;
use mlxcel_session::{Dry, HostSampler, LogitsSampler, Mirostat, SamplingContext, SamplingParams, TokenId};

const ROUNDS: usize = 51;

/// What is measured, by name.
type Row<'a> = (&'static str, Box<dyn Fn() + 'a>);

fn main() {
    // About the shape of a language model's logits: normally distributed, so that a few stand out.
    let uniform = |number: u32| (number.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 24) as f32;
    let logit = |token: u32| {
        let (radius, angle) = (uniform(token).max(1e-12).ln(), uniform(token ^ 0x5555_5555) * TAU);
        (-2.0 * radius).sqrt() * angle.cos() * 3.0
    };
    let logits: Vec<f32> = (0..128_256).map(logit).collect();
    let tokens: Vec<TokenId> = (0..500).map(|i| i * 37).collect();
    let drawn = || SamplingParams::greedy().with_temperature(0.8);
    let sampler = |params| HostSampler::new(params).unwrap();
    let sample = |sampler: HostSampler, top: u16| {
        let (logits, tokens) = (&logits, &tokens);
        move || {
            let mut context = SamplingContext::new(tokens, 10);
            context.top = top;
            drop(black_box(sampler.sample(black_box(logits), &context)));
        }
    };
    let rows: [Row<'_>; 13] = [
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
        ("top-p 0.95", Box::new(sample(sampler(drawn().with_top_p(0.95)), 0))),
        (
            "top-k, top-p, min-p, repetition",
            Box::new(sample(
                sampler(
                    drawn().with_top_k(40).with_top_p(0.95).with_min_p(0.05).with_repetition_penalty(1.1),
                ),
                0,
            )),
        ),
        ("typical-p 0.9", Box::new(sample(sampler(drawn().with_typical_p(0.9)), 0))),
        ("mirostat", Box::new(sample(sampler(drawn().with_mirostat(Mirostat::new(5.0, 0.1))), 0))),
        ("top-k 40, dry", Box::new(sample(sampler(drawn().with_top_k(40).with_dry(Dry::new(0.8))), 0))),
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
        println!("{name:>31} {:>8.0}", median.as_secs_f64() * 1e6);
    }
}
