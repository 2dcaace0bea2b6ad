//! The suite `pjrt`: our PJRT engine compared with the same network in jax on the same plugin, and with our
//! IREE engine.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::bandwidth::Probe;
use crate::machine::Machine;
use crate::peers;
use crate::report::{Contestant, Report};
use crate::serve::Engine;
use crate::shapes::{ModelName, Shapes};
use crate::spread::{Spread, shuffled};
use crate::worker::{self, Worker};

/// Measurements and their repetitions.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The folder of checkpoints and results
    #[arg(long, default_value = "target/bench")]
    folder: PathBuf,
    /// The plugin for our engine and jax
    #[arg(long)]
    plugin: PathBuf,
    /// The folder that has jax; by default only our engines are measured
    #[arg(long)]
    packages: Option<PathBuf>,
    /// The Python that jax was installed with
    #[arg(long, default_value = "python3")]
    python: String,
    /// The shapes of the model, of the llama family
    #[arg(long, value_enum, default_value_t = ModelName::Llama1b)]
    model: ModelName,
    /// Types of weights
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Kind::Bf16, Kind::F32])]
    types: Vec<Kind>,
    /// Omits the IREE engine
    #[arg(long)]
    no_iree: bool,
    /// How many times each is measured, in random order
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// The sequence length when decoding
    #[arg(long, default_value_t = 128)]
    position: usize,
    /// Tokens of a prompt
    #[arg(long, default_value_t = 128)]
    prefill: usize,
    /// Tokens decoded per round
    #[arg(long, default_value_t = 16)]
    decode: usize,
    /// The positions of jax's KV cache; the default equals ours for the default lengths
    #[arg(long, default_value_t = 256)]
    cache: usize,
    /// Measures memory instead, with the model split over this many devices of one process
    #[arg(long, value_delimiter = ',', num_args = 1..)]
    meshes: Vec<usize>,
}

/// The least capacity of sequences: the cache grows in steps, and these prompts and tokens use only the
/// first.
const CAPACITY: usize = 1024;

/// The type of weights, and of the activations that they are multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Bf16,
    F32,
}

impl Kind {
    fn bits(self) -> f64 {
        match self {
            Self::Bf16 => 16.0,
            Self::F32 => 32.0,
        }
    }
}

/// A program that computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Ours(Engine),
    Jax,
}

struct Entry {
    worker: Worker,
    result: Contestant,
}

/// Runs the suite, prints the table and writes `pjrt.json` beside the checkpoints.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if arguments.decode == 0 || arguments.prefill < 2 || arguments.position < 2 {
        bail!("token counts must be positive, and prompts have at least two");
    }
    let shapes = arguments.model.shapes();
    if shapes.experts.is_some() {
        bail!("the network in jax has no experts");
    }
    let checkpoint =
        fs::canonicalize(shapes.provide(&arguments.folder)?).context("finding the checkpoint")?;
    if !arguments.meshes.is_empty() {
        return memory(&shapes, &checkpoint, arguments);
    }
    let threads = std::thread::available_parallelism().map_or(1, Into::into);
    let probe = Probe::new()?;
    let mut memory = vec![probe.measure(threads)];
    let mut random = ChaCha8Rng::seed_from_u64(arguments.rounds as u64);
    let mut ratios = String::from("beside one another, of each round: median (least to most)\n");
    let (mut contestants, mut versions) = (Vec::new(), BTreeSet::new());
    // One type at a time: all would need the memory of six models.
    for &kind in &arguments.types {
        let iree = (!arguments.no_iree).then_some(Program::Ours(Engine::Iree));
        let jax = arguments.packages.is_some().then_some(Program::Jax);
        let programs = [Program::Ours(Engine::Pjrt)].into_iter().chain(jax).chain(iree);
        let mut entries = programs
            .map(|program| Entry::start(program, kind, &shapes, &checkpoint, arguments))
            .collect::<Result<Vec<_>>>()?;
        compare_logits(&mut entries, &checkpoint, arguments)?;
        // Compiles the programs.
        for entry in &mut entries {
            entry.turn(arguments)?;
        }
        for round in 0..arguments.rounds {
            for index in shuffled(entries.len(), &mut random) {
                let entry = &mut entries[index];
                let (decode, prefill) = entry.turn(arguments)?;
                entry.result.decode.push(decode);
                entry.result.prefill.push(prefill);
                eprintln!(
                    "round {}: {}: decode {decode:.2}, prefill {prefill:.1} tokens/s",
                    round + 1,
                    entry.result.name
                );
            }
            memory.push(probe.measure(threads));
        }
        ratios += &beside_one_another(&entries);
        versions.extend(entries.iter().flat_map(|entry| entry.worker.hello.versions.clone()));
        contestants.extend(entries.into_iter().map(|entry| entry.result));
    }
    let report = Report {
        model: shapes.name,
        machine: Machine::of_this_process(),
        versions: versions.into_iter().collect(),
        threads,
        decode_position: arguments.position,
        prefill_tokens: arguments.prefill,
        memory,
        contestants,
    };
    println!("\n{}\n{ratios}", report.table());
    report.write(&arguments.folder)
}

/// Prints the memory of meshes. Devices of a CPU share its memory: a process's memory beyond one copy of the
/// weights is what its devices hold beyond their parts, plus everything else.
fn memory(shapes: &Shapes, checkpoint: &Path, arguments: &Arguments) -> Result<()> {
    let weights = 2.0 * shapes.parameters() as f64;
    println!(
        "{} shapes, bf16, {:.1} MB of weights; private memory of the process",
        shapes.name,
        1e-6 * weights
    );
    for &devices in &arguments.meshes {
        let mut command = ours(Engine::Pjrt, Kind::Bf16, checkpoint, arguments)?;
        command.arg("--mesh").arg(devices.to_string());
        let worker = Worker::start(&format!("a mesh of {devices}"), command)?;
        let (Some(peak), Some(memory)) = (worker.loading_peak, worker.memory()) else {
            bail!("this system does not report the memory of a process");
        };
        let [peak, loaded] = [peak, memory.private]
            .map(|bytes| format!("{:.1} MB ({:.1} % of the weights)", 1e-6 * bytes, 100.0 * bytes / weights));
        println!("{devices} devices: {loaded} once loaded, at most {peak} before");
    }
    Ok(())
}

/// How many times as fast our PJRT engine, the first entry, is as each of the others, per round.
fn beside_one_another(entries: &[Entry]) -> String {
    let Some((own, others)) = entries.split_first() else { return String::new() };
    let line = |other: &Entry| {
        let ratio = |a: &[f64], b: &[f64]| {
            Spread::of(&a.iter().zip(b).map(|(a, b)| a / b).collect::<Vec<_>>()).to_string()
        };
        format!(
            "{} / {}: decode {}, prefill {}\n",
            own.result.name,
            other.result.name,
            ratio(&own.result.decode, &other.result.decode),
            ratio(&own.result.prefill, &other.result.prefill)
        )
    };
    others.iter().map(line).collect()
}

/// Compares the logits of a prompt: they must be of the same network.
fn compare_logits(entries: &mut [Entry], checkpoint: &Path, arguments: &Arguments) -> Result<()> {
    let mut first: Option<Vec<f32>> = None;
    for entry in entries {
        let logits = entry.worker.logits(arguments.prefill, &checkpoint.join("pjrt-logits"))?;
        let Some(first) = &first else {
            first = Some(logits);
            continue;
        };
        let (apart, scale) = worker::apart(first, &logits);
        eprintln!("{}: logits at most {apart:.2e} apart, of {scale:.2e}", entry.result.name);
        if apart.is_nan() || apart > 0.1 * scale {
            bail!("{} computes another network", entry.result.name);
        }
    }
    Ok(())
}

impl Entry {
    fn start(
        program: Program,
        kind: Kind,
        shapes: &Shapes,
        checkpoint: &Path,
        arguments: &Arguments,
    ) -> Result<Self> {
        let name = match program {
            Program::Ours(Engine::Pjrt) => "mlxcel pjrt",
            Program::Ours(_) => "mlxcel iree",
            Program::Jax => "jax",
        };
        let name = format!("{name} {}", worker::name(&kind));
        eprintln!("loading {name}");
        let command = match program {
            Program::Ours(engine) => ours(engine, kind, checkpoint, arguments)?,
            Program::Jax => {
                let packages = arguments.packages.as_deref().unwrap_or(Path::new(""));
                let (python, plugin) = (&arguments.python, &arguments.plugin);
                peers::jax(python, packages, plugin, checkpoint, &worker::name(&kind), arguments.cache)
            }
        };
        let worker = Worker::start(&name, command)?;
        let read = shapes.parameters() - shapes.unread_parameters();
        let result = Contestant {
            name,
            weight_bytes: read as f64 * kind.bits() / 8.0,
            decode: Vec::new(),
            prefill: Vec::new(),
        };
        Ok(Self { worker, result })
    }

    /// Rates of decoding and of prefill, in tokens a second.
    fn turn(&mut self, arguments: &Arguments) -> Result<(f64, f64)> {
        self.worker.rates(arguments.decode, arguments.position, arguments.prefill)
    }
}

/// This program as a worker.
fn ours(engine: Engine, kind: Kind, checkpoint: &Path, arguments: &Arguments) -> Result<Command> {
    let mut command = worker::this_program()?;
    let (engine, precision) = match (engine, kind) {
        (Engine::Pjrt, Kind::Bf16) => ("pjrt", "native"),
        (Engine::Pjrt, Kind::F32) => ("pjrt", "exact"),
        (_, Kind::Bf16) => ("iree", "native"),
        (_, Kind::F32) => ("iree", "exact"),
    };
    command.args(["serve", "--engine", engine, "--precision", precision, "--model"]).arg(checkpoint);
    // XLA's products take operands of one type: float32 weights are converted when loaded, like jax's.
    if kind == Kind::F32 && engine == "pjrt" {
        command.arg("--expanded");
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let capacity = (arguments.position + arguments.decode).max(arguments.prefill).max(CAPACITY);
    for (name, number) in [("threads", threads), ("capacity", capacity), ("sequences", 1)] {
        command.arg(format!("--{name}")).arg(number.to_string());
    }
    command.arg("--plugin").arg(&arguments.plugin);
    Ok(command)
}
