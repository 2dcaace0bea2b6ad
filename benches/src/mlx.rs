//! The suite `mlx`: our MLX engine compared with mlx-lm, in each type that may be mlx-lm's fastest.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::ValueEnum;
use mlxcel_core::{
    Backend, Control, InferenceSession, InferenceSessionExt, LoadOptions, Model, ModelSource, Row,
    SamplingPlan, SequenceId, SessionOptions, TokenId,
};
use mlxcel_mlx::{MlxBackend, WeightQuantization};

use crate::bandwidth::Probe;
use crate::machine::Machine;
use crate::peers::mlx_lm;
use crate::report::{Contestant, Report};
use crate::shapes::{ModelName, Shapes};
use crate::worker::Worker;

/// Measurements and their repetitions.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The folder of checkpoints and results
    #[arg(long, default_value = "target/bench")]
    folder: PathBuf,
    /// The folder that has mlx-lm; by default only our engine is measured
    #[arg(long)]
    packages: Option<PathBuf>,
    /// The Python that mlx-lm was installed with
    #[arg(long, default_value = "python3")]
    python: String,
    /// The shapes of the model
    #[arg(long, value_enum, default_value_t = ModelName::Llama1b)]
    model: ModelName,
    /// Our types
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Ours::Bf16, Ours::FourBit])]
    ours: Vec<Ours>,
    /// mlx-lm's types: `4bit` as in published checkpoints, `4bit-f32` with activations in float32
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Peer::F32, Peer::Bf16, Peer::FourBit, Peer::FourBitF32])]
    mlx_lm: Vec<Peer>,
    /// Threads; defaults to all cores. mlx-lm has no such setting
    #[arg(long)]
    threads: Option<usize>,
    /// How many times each decodes, in turns
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How many times mlx-lm prefills, which takes it minutes; ours prefill as often as they decode
    #[arg(long, default_value_t = 1)]
    mlx_lm_prefills: usize,
    /// The sequence length when decoding
    #[arg(long, default_value_t = 128)]
    position: usize,
    /// Tokens of a prompt
    #[arg(long, default_value_t = 128)]
    prefill: usize,
    /// Tokens that ours decode in a round
    #[arg(long, default_value_t = 16)]
    decode: usize,
    /// Tokens that mlx-lm decodes in a round
    #[arg(long, default_value_t = 4)]
    mlx_lm_decode: usize,
    /// Whether our engine computes with MLX's operations instead of its own kernels
    #[arg(long)]
    no_cpu_kernels: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Ours {
    Bf16,
    #[value(name = "8bit")]
    EightBit,
    #[value(name = "4bit")]
    FourBit,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Peer {
    F32,
    Bf16,
    #[value(name = "4bit")]
    FourBit,
    #[value(name = "4bit-f32")]
    FourBitF32,
}

/// A value's name on the command line.
fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Runs the suite, prints the table and writes `mlx.json` beside the checkpoints.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if arguments.prefill < 2
        || arguments.decode == 0
        || arguments.mlx_lm_decode == 0
        || arguments.position == 0
    {
        bail!("token counts must be positive, and prompts have at least two");
    }
    let shapes = arguments.model.shapes();
    let checkpoint = shapes.provide(&arguments.folder)?;
    let threads =
        arguments.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, Into::into));
    let mut entries = Vec::new();
    for kind in &arguments.ours {
        entries.push(Entry::ours(*kind, &shapes, &checkpoint, threads, arguments)?);
    }
    if let Some(packages) = &arguments.packages {
        for kind in &arguments.mlx_lm {
            entries.push(Entry::mlx_lm(*kind, &shapes, &checkpoint, packages, arguments)?);
        }
    }
    let probe = Probe::new()?;
    let mut memory = vec![probe.measure(threads)];
    for round in 0..arguments.rounds {
        for entry in &mut entries {
            entry.measure(round, arguments)?;
        }
        memory.push(probe.measure(threads));
    }
    let report = Report {
        suite: "mlx",
        model: shapes.name,
        machine: Machine::of_this_process(),
        versions: versions(&entries),
        threads,
        decode_position: arguments.position,
        prefill_tokens: arguments.prefill,
        memory,
        contestants: entries.into_iter().map(|entry| entry.result).collect(),
    };
    println!("\n{}", report.table());
    report.write(&arguments.folder)
}

fn versions(entries: &[Entry]) -> Vec<(String, String)> {
    let mut versions = vec![("mlxcel".to_owned(), env!("CARGO_PKG_VERSION").to_owned())];
    let peer = entries.iter().find_map(|entry| match &entry.player {
        Player::MlxLm(worker) => Some(worker.hello.versions.clone()),
        Player::Ours(_) => None,
    });
    versions.extend(peer.unwrap_or_default());
    versions
}

/// A contestant and its results.
struct Entry {
    player: Player,
    result: Contestant,
}

enum Player {
    Ours(Engine),
    MlxLm(Worker),
}

impl Entry {
    fn ours(
        kind: Ours,
        shapes: &Shapes,
        checkpoint: &Path,
        threads: usize,
        arguments: &Arguments,
    ) -> Result<Self> {
        let label = format!("mlxcel {}", name(&kind));
        eprintln!("loading {label}");
        let mut backend = MlxBackend::new().with_cpu_kernels(!arguments.no_cpu_kernels);
        // A group of 64 has a scale and a bias of 16 bits.
        let bits = match kind {
            Ours::Bf16 => 16.0,
            Ours::EightBit => 8.5,
            Ours::FourBit => 4.5,
        };
        if !matches!(kind, Ours::Bf16) {
            backend = backend.with_quantization(WeightQuantization::affine(bits as usize, 64)?);
        }
        let options = LoadOptions::default().with_threads(threads).with_device("cpu");
        let model = backend.load(&ModelSource::from(checkpoint), &options)?;
        let player = Player::Ours(Engine::new(&model, arguments)?);
        Ok(Self { player, result: contestant(label, true, shapes, bits) })
    }

    fn mlx_lm(
        kind: Peer,
        shapes: &Shapes,
        checkpoint: &Path,
        packages: &Path,
        arguments: &Arguments,
    ) -> Result<Self> {
        let label = format!("mlx-lm {}", name(&kind));
        eprintln!("loading {label}");
        let bits = match kind {
            Peer::F32 => 32.0,
            Peer::Bf16 => 16.0,
            Peer::FourBit => 4.5,
            Peer::FourBitF32 => 5.0,
        };
        let command = mlx_lm(&arguments.python, packages, checkpoint, &name(&kind));
        let worker = Worker::start("mlx-lm", command)?;
        Ok(Self { player: Player::MlxLm(worker), result: contestant(label, false, shapes, bits) })
    }

    fn measure(&mut self, round: usize, arguments: &Arguments) -> Result<()> {
        let (decoded, decode, prefill) = match &mut self.player {
            Player::Ours(engine) => (
                arguments.decode,
                engine.decode(arguments.position, arguments.decode)?.as_secs_f64(),
                Some(engine.prefill(arguments.prefill)?.as_secs_f64()),
            ),
            Player::MlxLm(worker) => (
                arguments.mlx_lm_decode,
                worker.decode(arguments.mlx_lm_decode, &[arguments.position])?.into_iter().sum(),
                match round < arguments.mlx_lm_prefills {
                    true => Some(worker.prefill(arguments.prefill)?),
                    false => None,
                },
            ),
        };
        let decode = decoded as f64 / decode;
        self.result.decode.push(decode);
        let prefill = prefill.map(|seconds| arguments.prefill as f64 / seconds);
        self.result.prefill.extend(prefill);
        let told = prefill.map(|rate| format!(", prefill {rate:.1}")).unwrap_or_default();
        eprintln!("round {}: {}: decode {decode:.2}{told} tokens/s", round + 1, self.result.name);
        Ok(())
    }
}

fn contestant(name: String, ours: bool, shapes: &Shapes, bits: f64) -> Contestant {
    let read = shapes.parameters() - shapes.unread_parameters();
    let weight_bytes = read as f64 * bits / 8.0;
    Contestant { name, ours, weight_bytes, decode: Vec::new(), prefill: Vec::new() }
}

/// Our engine with one session.
struct Engine {
    session: Box<dyn InferenceSession>,
    plan: SamplingPlan,
}

impl Engine {
    fn new(model: &Arc<dyn Model>, arguments: &Arguments) -> Result<Self> {
        let capacity = (arguments.position + arguments.decode).max(arguments.prefill) + 1;
        let session = model.open_session(&SessionOptions::default().with_capacity(capacity))?;
        let mut engine = Self { session, plan: SamplingPlan::greedy() };
        // The first run reads weights from disk and starts threads.
        engine.decode(2, 1)?;
        Ok(engine)
    }

    /// The time from a prompt of `tokens` tokens to the first new token.
    fn prefill(&mut self, tokens: usize) -> Result<Duration> {
        let sequence = self.session.open()?;
        let start = Instant::now();
        self.feed(sequence, tokens)?;
        let time = start.elapsed();
        self.session.close(sequence)?;
        Ok(time)
    }

    /// The time of `count` tokens of a sequence of length `position`.
    fn decode(&mut self, position: usize, count: usize) -> Result<Duration> {
        let sequence = self.session.open()?;
        let mut token = self.feed(sequence, position)?;
        let start = Instant::now();
        for _ in 0..count {
            let answers = self.session.decode_step(&[(sequence, token)], &self.plan, &Control::default())?;
            token = match answers.into_iter().next() {
                Some(answer) => answer?.token,
                None => bail!("a step without a result"),
            };
        }
        let time = start.elapsed();
        self.session.close(sequence)?;
        Ok(time)
    }

    fn feed(&mut self, sequence: SequenceId, tokens: usize) -> Result<TokenId> {
        let prompt: Vec<TokenId> = (0..tokens).map(|i| ((7 * i + 11) % 1000) as TokenId).collect();
        let row = Row::next(sequence, &prompt, &self.plan);
        Ok(self.session.run_row(row, &Control::default())?.into_token()?.token)
    }
}
