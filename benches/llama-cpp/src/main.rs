//! llama.cpp on request, for `mlxcel-benches`.
//!
//! ```text
//! mlxcel-bench-llama-cpp quantize FROM.gguf TO.gguf TYPE THREADS       (TYPE: q8_0, q4_0, q4_0-pure with no other type in it, q4_k_m, q6_k, iq4_nl)
//! mlxcel-bench-llama-cpp serve MODEL.gguf THREADS CAPACITY
//! ```
//!
//! `serve` says in a line of JSON what it is and how long loading took, then reads a request a line and
//! answers each with a line:
//!
//! ```text
//! prefill TOKENS                          a prompt of as many tokens, until the token after it is known
//! decode COUNT POSITION...                COUNT tokens of a sequence that has POSITION tokens, for each position, in order
//! batch COUNT POSITION SEQUENCES...       COUNT tokens of each of so many sequences with POSITION tokens, for each number
//! logits TOKENS FILE                      writes the logits after a prompt, as float32
//! ```
//!
//! Everything is as llama.cpp has it by default (a cache in float16, repacked weights, flash attention where
//! it chooses so), but for the number of threads.

mod quantize;

use std::io::{BufRead, Write};
use std::num::NonZeroU32;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::LlamaContextParams;
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::token::LlamaToken;
use serde_json::{Value, json};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut backend = LlamaBackend::init()?;
    if std::env::var_os("LLAMA_LOG").is_none() {
        backend.void_logs();
    }
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["quantize", from, to, kind, threads] => quantize::quantize(from, to, kind, threads.parse()?),
        ["serve", model, threads, capacity] => serve(&backend, model, threads.parse()?, capacity.parse()?),
        _ => bail!("usage: quantize FROM TO TYPE THREADS, or serve MODEL THREADS CAPACITY"),
    }
}

fn serve(backend: &LlamaBackend, path: &str, threads: u32, capacity: u32) -> Result<()> {
    let start = Instant::now();
    let model = LlamaModel::load_from_file(backend, path, &LlamaModelParams::default())?;
    let mut one = Sequences::new(backend, &model, threads, capacity, 1)?;
    answer(&json!({
        "versions": [["llama-cpp-2", "0.1.160"]],
        "load_seconds": start.elapsed().as_secs_f64(),
        "weight_bytes": model.size(),
        "notes": quantize::system_info(),
    }))?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        answer(&match words.as_slice() {
            ["prefill", tokens] => {
                one.clear();
                let start = Instant::now();
                one.feed(tokens.parse()?)?;
                json!({"seconds": start.elapsed().as_secs_f64()})
            }
            ["decode", count, positions @ ..] => {
                one.clear();
                let count = count.parse()?;
                let mut seconds = Vec::new();
                for position in positions {
                    one.feed(position.parse()?)?;
                    seconds.push(one.decode(count, 1)?);
                }
                json!({"seconds": seconds})
            }
            ["batch", count, position, numbers @ ..] => {
                let (count, position): (u32, usize) = (count.parse()?, position.parse()?);
                let numbers = numbers.iter().map(|n| n.parse()).collect::<Result<Vec<usize>, _>>()?;
                let most = numbers.iter().copied().max().context("of how many sequences?")?;
                let room = position as u32 + count * numbers.len() as u32 + 1;
                let mut many = Sequences::new(backend, &model, threads, room, most)?;
                many.feed(position)?;
                let seconds = numbers.iter().map(|&n| many.decode(count, n)).collect::<Result<Vec<_>>>()?;
                json!({"seconds": seconds})
            }
            ["logits", tokens, ..] => {
                let file = line.splitn(3, ' ').nth(2).context("into which file?")?;
                one.clear();
                let start = Instant::now();
                one.feed(tokens.parse()?)?;
                let seconds = start.elapsed().as_secs_f64();
                let bytes: Vec<u8> = one.logits().iter().flat_map(|logit| logit.to_le_bytes()).collect();
                std::fs::write(file, bytes).with_context(|| format!("writing {file}"))?;
                json!({"seconds": seconds})
            }
            _ => bail!("an unknown request: {line}"),
        })?;
    }
    Ok(())
}

fn answer(value: &Value) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{value}")?;
    Ok(out.flush()?)
}

/// Sequences of one context, all fed alike.
struct Sequences<'a> {
    context: LlamaContext<'a>,
    batch: LlamaBatch<'static>,
    /// The tokens that each has, and the token that follows them.
    lengths: Vec<usize>,
    next: Vec<LlamaToken>,
}

impl<'a> Sequences<'a> {
    fn new(
        backend: &LlamaBackend,
        model: &'a LlamaModel,
        threads: u32,
        capacity: u32,
        sequences: usize,
    ) -> Result<Self> {
        // A stream of its own for each, in multiples that llama.cpp likes.
        let capacity = capacity.next_multiple_of(256);
        let threads = i32::try_from(threads)?;
        let params = LlamaContextParams::default()
            .with_n_ctx(NonZeroU32::new(capacity * sequences as u32))
            .with_n_seq_max(sequences as u32)
            .with_n_threads(threads)
            .with_n_threads_batch(threads);
        let context = model.new_context(backend, params)?;
        let batch = LlamaBatch::new(context.n_batch() as usize, 1);
        Ok(Self { context, batch, lengths: vec![0; sequences], next: vec![LlamaToken(0); sequences] })
    }

    fn clear(&mut self) {
        self.context.clear_kv_cache();
        self.lengths.fill(0);
    }

    /// Extends each sequence until it has `tokens`, and finds the token that follows.
    fn feed(&mut self, tokens: usize) -> Result<()> {
        let most = self.context.n_batch() as usize;
        for sequence in 0..self.lengths.len() {
            while self.lengths[sequence] < tokens {
                let from = self.lengths[sequence];
                let to = tokens.min(from + most);
                self.batch.clear();
                for position in from..to {
                    let token = LlamaToken(((7 * position + 11) % 1000) as i32);
                    self.batch.add(token, position as i32, &[sequence as i32], position + 1 == tokens)?;
                }
                self.context.decode(&mut self.batch)?;
                self.lengths[sequence] = to;
            }
            self.next[sequence] = argmax(self.context.get_logits_ith(self.batch.n_tokens() - 1));
        }
        Ok(())
    }

    /// The seconds that `count` steps of the first `sequences` take.
    fn decode(&mut self, count: u32, sequences: usize) -> Result<f64> {
        let start = Instant::now();
        for _ in 0..count {
            self.batch.clear();
            for sequence in 0..sequences {
                let position = self.lengths[sequence] as i32;
                self.batch.add(self.next[sequence], position, &[sequence as i32], true)?;
            }
            self.context.decode(&mut self.batch)?;
            for sequence in 0..sequences {
                self.next[sequence] = argmax(self.context.get_logits_ith(sequence as i32));
                self.lengths[sequence] += 1;
            }
        }
        Ok(start.elapsed().as_secs_f64())
    }

    fn logits(&self) -> &[f32] {
        self.context.get_logits_ith(self.batch.n_tokens() - 1)
    }
}

fn argmax(logits: &[f32]) -> LlamaToken {
    let (mut best, mut most) = (0, f32::NEG_INFINITY);
    for (token, &logit) in logits.iter().enumerate() {
        if logit > most {
            (best, most) = (token, logit);
        }
    }
    LlamaToken(best as i32)
}
