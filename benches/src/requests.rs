//! The suite `requests`: concurrent requests on one `Engine`, compared with one at a time. Results are ratios
//! within one run.

use std::path::PathBuf;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use mlxcel_iree::IreeBackend;
use mlxcel_session::{Engine, EngineOptions, LoadOptions, Model, Options, PrefixCache, TokenId};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::machine::Machine;
use crate::spread::{Spread, random_tokens, shuffled};

/// Measurements and their repetitions.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The checkpoint
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// Numbers of concurrent requests, each compared with one
    #[arg(long, value_delimiter = ',', default_values_t = [8, 16])]
    requests: Vec<usize>,
    /// How many times each is measured, in random order
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Tokens that each request generates
    #[arg(long, default_value_t = 64)]
    tokens: usize,
    /// Tokens of the long prompt that arrives among seven requests, and of the shared prefix
    #[arg(long, default_value_t = 2000)]
    long: usize,
    #[arg(long, default_value_t = 1000)]
    shared: usize,
    /// Number of threads; defaults to the engine's choice
    #[arg(long)]
    threads: Option<usize>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let Machine { processor, cores, .. } = Machine::of_this_process();
    println!("{processor}, {cores} cores; {}; {} rounds\n", arguments.model.display(), arguments.rounds);
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let most = arguments.requests.iter().copied().max().unwrap_or(1).max(8);
    let mut load = LoadOptions::default().with_sequences(most).with_capacity(arguments.long + 600);
    load.threads = arguments.threads;
    let model = Model::load(&IreeBackend::new(), arguments.model.as_path(), &load).context("loading")?;
    throughput(arguments, &model, &mut random)?;
    long_prompt(arguments, &model, &mut random)?;
    shared_prefix(arguments, &model, &mut random)
}

fn engine(model: &Model) -> Result<Engine> {
    // Requests should not be paused because the system did not schedule their threads.
    let mut options = EngineOptions::default();
    options.unread_tokens = 1 << 16;
    Ok(Engine::with_options(model.clone(), &options)?)
}

fn prompt(model: &Model, tokens: usize, random: &mut ChaCha8Rng) -> Vec<TokenId> {
    random_tokens(model.info().vocabulary_size, tokens, random)
}

fn options(tokens: usize) -> Options {
    Options::new(tokens).with_ignore_stop(true)
}

/// Tokens per second of `count` requests that are submitted at once.
fn rate(model: &Model, engine: &Engine, count: usize, tokens: usize, random: &mut ChaCha8Rng) -> Result<f64> {
    let streams = (0..count).map(|_| engine.generate_tokens(&prompt(model, 16, random), &options(tokens)));
    let start = Instant::now();
    let streams = streams.collect::<mlxcel_session::Result<Vec<_>>>()?;
    for stream in streams {
        let found = stream.complete()?.tokens.len();
        if found != tokens {
            bail!("{found} tokens instead of the requested {tokens}");
        }
    }
    Ok((count * tokens) as f64 / start.elapsed().as_secs_f64())
}

fn throughput(arguments: &Arguments, model: &Model, random: &mut ChaCha8Rng) -> Result<()> {
    let engine = engine(model)?;
    let mut counts = vec![1];
    counts.extend(&arguments.requests);
    // Compiles the programs.
    for &count in &counts {
        rate(model, &engine, count, arguments.tokens, random)?;
    }
    let mut rates = vec![Vec::new(); counts.len()];
    for _ in 0..arguments.rounds {
        for index in shuffled(counts.len(), random) {
            rates[index].push(rate(model, &engine, counts[index], arguments.tokens, random)?);
        }
    }
    println!("requests   tokens a second          beside one, of each round");
    for (index, &count) in counts.iter().enumerate() {
        let beside: Vec<f64> = rates[index].iter().zip(&rates[0]).map(|(many, one)| many / one).collect();
        println!("{count:>8}   {:<22}   {}", Spread::of(&rates[index]).to_string(), Spread::of(&beside));
    }
    Ok(())
}

/// The longest wait for a token of seven requests while a long prompt is computed, relative to the time of a
/// chunk.
fn long_prompt(arguments: &Arguments, model: &Model, random: &mut ChaCha8Rng) -> Result<()> {
    let engine = engine(model)?;
    let chunk = model.capabilities().prompt_chunk;
    let (mut waits, mut chunks) = (Vec::new(), Vec::new());
    for round in 0..=arguments.rounds {
        let long = prompt(model, arguments.long, random);
        // Alone: the time of a chunk.
        let alone = engine.generate_tokens(&long, &options(1))?.complete()?.usage;
        let computed = alone.prefill.as_secs_f64() / arguments.long.div_ceil(chunk) as f64;
        let started = Arc::new(Barrier::new(8));
        let decoding = (0..7).map(|_| {
            let mut stream = engine.generate_tokens(&prompt(model, 16, random), &options(400))?;
            let (started, cancel) = (Arc::clone(&started), stream.cancel_token());
            let reader = thread::spawn(move || {
                let mut longest = Duration::ZERO;
                let mut last = Instant::now();
                for number in 0.. {
                    if stream.next_token().is_none() {
                        break;
                    }
                    if number == 4 {
                        started.wait();
                    } else if number > 4 {
                        longest = longest.max(last.elapsed());
                    }
                    last = Instant::now();
                }
                longest
            });
            Ok((reader, cancel))
        });
        let decoding = decoding.collect::<Result<Vec<_>>>()?;
        started.wait();
        engine.generate_tokens(&prompt(model, arguments.long, random), &options(1))?.complete()?;
        let mut longest = Duration::ZERO;
        for (reader, cancel) in decoding {
            cancel.cancel();
            longest = longest.max(reader.join().map_err(|_| anyhow::anyhow!("a reader panicked"))?);
        }
        // The first round compiles.
        if round > 0 {
            waits.push(longest.as_secs_f64() / computed);
            chunks.push(computed);
        }
    }
    println!(
        "\na prompt of {} tokens among 7 that decode, in chunks of {chunk} ({} s): the longest wait of all tokens, in chunks: {}",
        arguments.long,
        Spread::of(&chunks),
        Spread::of(&waits)
    );
    Ok(())
}

/// The time to the first token of a prompt with a known prefix, relative to a new one.
fn shared_prefix(arguments: &Arguments, model: &Model, random: &mut ChaCha8Rng) -> Result<()> {
    let model = model.clone().with_prefix_cache(PrefixCache::new(1 << 30));
    let engine = engine(&model)?;
    let first_token = |tokens: &[TokenId]| -> Result<f64> {
        let usage = engine.generate_tokens(tokens, &options(2))?.complete()?.usage;
        Ok(usage.time_to_first_token.context("there is a first token")?.as_secs_f64())
    };
    let mut gains = Vec::new();
    for round in 0..=arguments.rounds {
        let shared = prompt(&model, arguments.shared, random);
        let asked = |random: &mut ChaCha8Rng| [shared.clone(), prompt(&model, 16, random)].concat();
        let new = first_token(&asked(random))?;
        let known = first_token(&asked(random))?;
        if round > 0 {
            gains.push(new / known);
        }
    }
    println!(
        "\na shared prefix of {} tokens: the first token comes {} times as soon",
        arguments.shared,
        Spread::of(&gains)
    );
    Ok(())
}
