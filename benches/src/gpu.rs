//! The suite `gpu`: our engines on one GPU, and the network of the suite `pjrt` in jax.
//!
//! An engine that a machine lacks, or that fails, is a line of the report and does not end the run.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use mlxcel_core::Precision;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::Serialize;

use crate::machine::Machine;
use crate::peers;
use crate::shapes::{ModelName, Shapes};
use crate::spread::Spread;
use crate::worker::{self, Worker, name};

/// What runs, and how often.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The folder of checkpoints and results
    #[arg(long, default_value = "target/bench")]
    folder: PathBuf,
    /// The engines
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Place::value_variants().to_vec())]
    places: Vec<Place>,
    /// The plugin for our engine pjrt, which is omitted without
    #[arg(long)]
    plugin: Option<PathBuf>,
    /// The folder that has jax, if Python does not find it by itself
    #[arg(long)]
    packages: Option<PathBuf>,
    /// The Python that has jax for NVIDIA's GPUs; by default jax is not measured
    #[arg(long)]
    python: Option<String>,
    /// The folder of checkpoints with their `oracle.json`, which each engine is compared with first
    #[arg(long)]
    oracles: Option<PathBuf>,
    /// Only the checkpoints of these names
    #[arg(long, value_delimiter = ',', requires = "oracles")]
    only: Vec<String>,
    /// The shapes of the model, of the llama family
    #[arg(long, value_enum, default_value_t = ModelName::Llama1b)]
    model: ModelName,
    /// How many times each is measured, in random order; 0 compares with the oracles only
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// The sequence length when decoding
    #[arg(long, default_value_t = 128)]
    position: usize,
    /// Tokens of a prompt
    #[arg(long, default_value_t = 512)]
    prefill: usize,
    /// Tokens decoded per round
    #[arg(long, default_value_t = 64)]
    decode: usize,
}

/// An engine on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Place {
    IreeVulkan,
    IreeCuda,
    Pjrt,
    Mlx,
}

impl Place {
    /// The arguments of our worker.
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::IreeVulkan => &["--engine", "iree", "--device", "vulkan"],
            Self::IreeCuda => &["--engine", "iree", "--device", "cuda"],
            Self::Pjrt => &["--engine", "pjrt"],
            Self::Mlx => &["--engine", "mlx", "--device", "gpu"],
        }
    }
}

/// Who is measured: an engine of ours with a precision and the bits that it quantizes weights to, or jax.
#[derive(Clone, Copy, Debug)]
enum Who {
    Ours(Place, Precision, Option<usize>),
    Jax,
}

impl Who {
    fn name(self) -> String {
        match self {
            Self::Ours(place, precision, None) => format!("{} {precision}", name(&place)),
            Self::Ours(place, precision, Some(bits)) => format!("{} {precision} {bits}bit", name(&place)),
            Self::Jax => "jax bf16".to_owned(),
        }
    }

    /// Bits per weight that a token reads; a group of 64 has a scale and a bias of 16 bits.
    fn bits(self) -> f64 {
        match self {
            Self::Ours(_, _, Some(bits)) => bits as f64 + 0.5,
            _ => 16.0,
        }
    }
}

#[derive(Debug, Default, Serialize)]
struct Results {
    name: String,
    /// Why there are none, or no more.
    failed: Option<String>,
    /// Bytes of weights that a token reads.
    weight_bytes: f64,
    load_seconds: f64,
    /// Private memory of the process in bytes: once loaded, and at most before.
    private: Option<f64>,
    loading_peak: Option<f64>,
    /// The largest difference of logits from those of the first contestant, relative to the largest.
    logits_apart: f64,
    /// In tok/s, in the order in which they were measured.
    decode: Vec<f64>,
    prefill: Vec<f64>,
}

#[derive(Default, Serialize)]
struct Report {
    model: &'static str,
    machine: Machine,
    devices: Vec<String>,
    versions: BTreeSet<(String, String)>,
    /// What each engine said of the oracles.
    oracles: Vec<(String, Vec<String>)>,
    decode_position: usize,
    prefill_tokens: usize,
    /// Bytes that the device's memory moved in a second, as jax measures it.
    bandwidth: Vec<f64>,
    contestants: Vec<Results>,
}

/// Runs the suite, prints the report and writes `gpu.json` into the folder.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if arguments.decode == 0 || arguments.prefill < 2 || arguments.position < 2 {
        bail!("token counts must be positive, and prompts have at least two");
    }
    let shapes = arguments.model.shapes();
    let devices = mlxcel_iree::devices::list().iter().map(ToString::to_string).collect();
    let mut report = Report {
        model: shapes.name,
        machine: Machine::of_this_process(),
        devices,
        decode_position: arguments.position,
        prefill_tokens: arguments.prefill,
        ..Report::default()
    };
    for device in &report.devices {
        println!("{device}");
    }
    let mut places = arguments.places.clone();
    places.retain(|&place| place != Place::Pjrt || arguments.plugin.is_some());
    let folders = arguments.oracles.as_deref().map(|folder| oracles_in(folder, &arguments.only));
    let folders = folders.transpose()?.unwrap_or_default();
    for &place in places.iter().filter(|_| !folders.is_empty()) {
        let lines = compare(place, &folders, arguments)?;
        report.oracles.push((name(&place), lines));
    }
    if arguments.rounds > 0 {
        let checkpoint =
            fs::canonicalize(shapes.provide(&arguments.folder)?).context("finding the checkpoint")?;
        measure(&mut report, &places, &shapes, &checkpoint, arguments)?;
        println!("\n{}", report.table());
    }
    let path = arguments.folder.join("gpu.json");
    fs::create_dir_all(&arguments.folder).context("making the folder of results")?;
    fs::write(&path, serde_json::to_string_pretty(&report)?)
        .with_context(|| format!("writing {}", path.display()))?;
    eprintln!("\nthe numbers are in {}", path.display());
    Ok(())
}

/// The checkpoints in `folder`, or those of them with the names `only`, that have an oracle.
fn oracles_in(folder: &Path, only: &[String]) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut folders = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    folders.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        path.join("oracle.json").is_file() && (only.is_empty() || only.iter().any(|one| *one == name))
    });
    folders.sort();
    Ok(folders)
}

/// A line per checkpoint. As many processes as half of the cores share them: most of the time is that of
/// compilers.
fn compare(place: Place, folders: &[PathBuf], arguments: &Arguments) -> Result<Vec<String>> {
    let processes = std::thread::available_parallelism().map_or(1, Into::into).div_ceil(2);
    let children = folders.chunks(folders.len().div_ceil(processes)).map(|folders| {
        let mut command = worker::this_program()?;
        command.arg("oracles").args(place.arguments()).args(plugin(place, arguments)).args(folders);
        let child = command.stdout(Stdio::piped()).spawn();
        Ok((folders.len(), child.context("starting this program")?))
    });
    let children = children.collect::<Result<Vec<_>>>()?;
    std::thread::scope(|scope| {
        let follow = |(count, child)| scope.spawn(move || follow(place, count, child));
        let followed: Vec<_> = children.into_iter().map(follow).collect();
        let lines =
            followed.into_iter().map(|lines| lines.join().unwrap_or_else(|panic| resume_unwind(panic)));
        Ok(lines.collect::<Result<Vec<_>>>()?.concat())
    })
}

/// The lines of a process about `count` checkpoints, each printed when it comes. A driver may end the process
/// before the last.
fn follow(place: Place, count: usize, mut child: Child) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    let mut add = |line: String| {
        println!("{}: {line}", name(&place));
        lines.push(line);
    };
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).lines().map_while(std::io::Result::ok).for_each(&mut add);
    }
    let status = child.wait().context("waiting for this program")?;
    if lines.len() < count {
        let missing = format!("{} more: {status}", count - lines.len());
        println!("{}: {missing}", name(&place));
        lines.push(missing);
    }
    Ok(lines)
}

fn measure(
    report: &mut Report,
    places: &[Place],
    shapes: &Shapes,
    checkpoint: &Path,
    arguments: &Arguments,
) -> Result<()> {
    let ours = places.iter().flat_map(|&place| {
        let quantized = (place == Place::Mlx).then_some(Who::Ours(place, Precision::Native, Some(4)));
        // Vulkan computes in float32 only.
        let native = (place != Place::IreeVulkan).then_some(Who::Ours(place, Precision::Native, None));
        [Who::Ours(place, Precision::Exact, None)].into_iter().chain(native).chain(quantized)
    });
    let jax = arguments.python.is_some().then_some(Who::Jax);
    let mut running = Vec::new();
    let mut reference = None;
    for who in ours.chain(jax) {
        eprintln!("loading {}", who.name());
        let read = shapes.parameters() - shapes.unread_parameters();
        let mut results =
            Results { name: who.name(), weight_bytes: read as f64 * who.bits() / 8.0, ..Results::default() };
        let started = start(who, checkpoint, arguments, &mut results, &mut reference);
        match started {
            Ok(worker) => {
                report.versions.extend(worker.hello.versions.iter().cloned());
                running.push((report.contestants.len(), who, worker));
            }
            Err(error) => {
                eprintln!("{}: {error:#}", results.name);
                results.failed = Some(format!("{error:#}"));
            }
        }
        report.contestants.push(results);
    }
    let mut random = ChaCha8Rng::seed_from_u64(arguments.rounds as u64);
    for round in 0..arguments.rounds {
        running.sort_by_cached_key(|_| random.next_u64());
        running.retain_mut(|(index, who, worker)| {
            let results = &mut report.contestants[*index];
            let mut turn = || -> Result<(f64, f64)> {
                let rates = worker.rates(arguments.decode, arguments.position, arguments.prefill)?;
                if matches!(who, Who::Jax) {
                    report.bandwidth.push(worker.bandwidth()?);
                }
                Ok(rates)
            };
            match turn() {
                Ok((decode, prefill)) => {
                    results.decode.push(decode);
                    results.prefill.push(prefill);
                    let name = &results.name;
                    eprintln!(
                        "round {}: {name}: decode {decode:.1}, prefill {prefill:.0} tokens/s",
                        round + 1
                    );
                    true
                }
                Err(error) => {
                    eprintln!("{}: {error:#}", results.name);
                    results.failed = Some(format!("{error:#}"));
                    false
                }
            }
        });
    }
    Ok(())
}

/// Starts a contestant, compares its logits with the first one's, and has it compile what is measured.
fn start(
    who: Who,
    checkpoint: &Path,
    arguments: &Arguments,
    results: &mut Results,
    reference: &mut Option<Vec<f32>>,
) -> Result<Worker> {
    let capacity = (arguments.position + arguments.decode).max(arguments.prefill) + 1;
    let command = match who {
        Who::Jax => {
            let python = arguments.python.as_deref().unwrap_or("python3");
            peers::jax_on_gpu(python, arguments.packages.as_deref(), checkpoint, "bf16", capacity)
        }
        Who::Ours(place, precision, bits) => {
            let mut command = worker::this_program()?;
            command.arg("serve").args(place.arguments()).args(plugin(place, arguments));
            command.args(["--precision", &precision.to_string(), "--sequences", "1", "--threads", "1"]);
            command.args(["--capacity", &capacity.to_string(), "--model"]).arg(checkpoint);
            command.args(bits.map(|bits| format!("--bits={bits}")));
            command
        }
    };
    let started = Instant::now();
    let mut worker = Worker::start(&who.name(), command)?;
    let through = std::path::absolute(arguments.folder.join("gpu-logits")).context("naming a file")?;
    let logits = worker.logits(arguments.prefill, &through)?;
    let reference = reference.get_or_insert_with(|| logits.clone());
    let (difference, scale) = worker::apart(reference, &logits);
    results.logits_apart = f64::from(difference / scale);
    worker.decode(arguments.decode, &[arguments.position])?;
    worker.prefill(arguments.prefill)?;
    eprintln!("{}: ready after {:.1} s", who.name(), started.elapsed().as_secs_f64());
    results.load_seconds = worker.hello.load_seconds;
    results.loading_peak = worker.loading_peak;
    results.private = worker.memory().map(|memory| memory.private);
    Ok(worker)
}

/// The arguments of the worker that name the plugin.
fn plugin(place: Place, arguments: &Arguments) -> Vec<String> {
    let plugin = arguments.plugin.as_ref().filter(|_| place == Place::Pjrt);
    let named = |plugin: &PathBuf| vec![format!("--plugin={}", plugin.display()), "--shares-gpu".to_owned()];
    plugin.map(named).unwrap_or_default()
}

impl Report {
    fn table(&self) -> String {
        let mut text = String::new();
        let bandwidth = Spread::of(&self.bandwidth);
        let versions: Vec<_> =
            self.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
        // Writing to a string does not fail.
        let _ = writeln!(text, "{} shapes, random weights; {}", self.model, versions.join(", "));
        let _ = writeln!(text, "the device's memory moves {} GB/s", bandwidth.scaled(1e-9));
        let _ = writeln!(text, "median (least to most), tok/s\n");
        let titles =
            [format!("decode at {}", self.decode_position), format!("prefill of {}", self.prefill_tokens)];
        let [decode, prefill] = &titles;
        let _ = writeln!(
            text,
            "{:<22} {decode:>26} {:>8} {prefill:>30} {:>10} {:>8} {:>16}",
            "", "of bus", "logits", "load s", "host GB (peak)"
        );
        for one in &self.contestants {
            let (decode, prefill) = (Spread::of(&one.decode), Spread::of(&one.prefill));
            let share = 100.0 * decode.median * one.weight_bytes / bandwidth.median;
            let share = if share.is_finite() { format!("{share:.0} %") } else { "-".to_owned() };
            let gigabytes =
                |bytes: Option<f64>| bytes.map_or("-".to_owned(), |bytes| format!("{:.1}", 1e-9 * bytes));
            let memory = format!("{} ({})", gigabytes(one.private), gigabytes(one.loading_peak));
            let _ = writeln!(
                text,
                "{:<22} {decode:>26} {share:>8} {prefill:>30} {:>10.1e} {:>8.1} {memory:>16}",
                one.name, one.logits_apart, one.load_seconds
            );
            if let Some(reason) = &one.failed {
                let _ = writeln!(text, "    {}", reason.lines().next().unwrap_or_default());
            }
        }
        text
    }
}
