//! Writes a bundle: a model with its programs compiled beforehand, for machines that have no compiler.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use mlxcel_session::iree::bundle::{self, BundleOptions, Manifest, split_targets};
use mlxcel_session::iree::inspect::{InspectOptions, inspect};
use mlxcel_session::iree::tune::Tuning;
use mlxcel_session::{LoadOptions, ModelSource, Precision};
use serde_json::{Value, json};

use crate::adapters::BundledAdapters;
use crate::engine::iree;
use crate::model::SourceArguments;
use crate::progress::Progress;
use crate::report::{Failure, expect_new, print};

/// Write a model with its programs compiled, in a folder that runs without a compiler
///
/// `mlxcel generate --model DIR` runs it. On an error, nothing is left behind.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    source: SourceArguments,
    /// Compile targets: `llvm-cpu:x86-64-v3`, `cuda:sm_89`, `rocm:gfx942`, …; `stablehlo` for plain text
    /// for other compilers
    ///
    /// Separate several by commas; features of a target follow it with commas and signs:
    /// `llvm-cpu:x86-64-v3,+avx512f,cuda:sm_89`. `llvm-cpu:host` is this machine's CPU.
    #[arg(long, value_name = "T[,T]", default_value = "llvm-cpu:host")]
    target: String,
    /// The folder to write
    #[arg(long, value_name = "DIR", required_unless_present = "inspect")]
    out: Option<PathBuf>,
    /// Instead of a bundle, write what the compiler makes of the two programs that every generation begins
    /// with, for one target: the program, each phase of the compiler, the code, and a summary of a step,
    /// which is printed
    #[arg(long, value_name = "DIR", conflicts_with_all = ["out", "no_weights", "no_laid_out_weights", "force", "every_position", "verification", "hidden_states", "sequences", "adapter", "adapter_slots", "adapter_rank"])]
    inspect: Option<PathBuf>,
    /// First measure which schedule of kernels is fastest on this machine, as `mlxcel tune` does, and keep
    /// it: some seconds, in which nothing else should load the machine; needs the target
    /// `llvm-cpu:host`
    #[arg(long, conflicts_with = "inspect")]
    tune: bool,
    /// Leave the weights out: the bundle then goes with the checkpoint's own folder
    #[arg(long)]
    no_weights: bool,
    /// Write the weights only as the checkpoint has them, without a copy in the programs' layout: half the
    /// disk; opening the bundle then copies them into private memory
    #[arg(long)]
    no_laid_out_weights: bool,
    /// How many sequences a session can have
    #[arg(long, value_name = "N", default_value_t = 1)]
    sequences: usize,
    /// The maximum number of tokens of a sequence: prompt and text together; defaults to the model's own
    /// limit
    #[arg(long, value_name = "N")]
    context: Option<usize>,
    /// Numeric precision: exact (float32), native (the checkpoint's own type), fast
    #[arg(long, value_name = "NAME", default_value_t)]
    precision: Precision,
    #[command(flatten)]
    adapters: BundledAdapters,
    /// Include the programs that score texts
    #[arg(long)]
    every_position: bool,
    /// Include the programs of speculative decoding
    #[arg(long)]
    verification: bool,
    /// Include the programs that embed texts
    #[arg(long)]
    hidden_states: bool,
    /// Replace a bundle that is there already
    #[arg(long)]
    force: bool,
    /// Print one JSON object: the folder, the room for adapters and those inside, for each target its
    /// programs and bytes, the checkpoint's files and bytes, seconds, and with --tune the schedule; with
    /// --inspect, a list of summaries
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    match (&arguments.inspect, &arguments.out) {
        (Some(folder), _) => run_inspect(arguments, folder),
        (None, Some(folder)) => run_write(arguments, folder),
        (None, None) => Err(Failure::Usage("pass the folder to write with --out DIR".to_owned())),
    }
}

fn run_inspect(arguments: &Arguments, folder: &Path) -> Result<(), Failure> {
    let progress = Progress::new();
    let mut load = LoadOptions::default().with_precision(arguments.precision);
    load.capacity = arguments.context;
    load.progress = progress.reporter();
    let source = arguments.source.locate(&load)?;
    let options = InspectOptions::from(load).with_target(arguments.target.parse()?);
    let inspected = inspect(&iree(), &source, folder, &options);
    progress.close();
    print(arguments.json, &inspected?, |out, summaries| {
        summaries.iter().try_for_each(|summary| writeln!(out, "{summary}"))?;
        writeln!(out, "written to {}", folder.display())
    })
}

fn run_write(arguments: &Arguments, folder: &Path) -> Result<(), Failure> {
    if !arguments.force {
        expect_new(folder, "choose another folder, or replace a bundle with --force")?;
    }
    let started = Instant::now();
    let progress = Progress::new();
    let mut load =
        LoadOptions::default().with_precision(arguments.precision).with_sequences(arguments.sequences);
    load.capacity = arguments.context;
    load.progress = progress.reporter();
    let load = arguments.adapters.make_room(load)?;
    let source = arguments.source.locate(&load)?;
    let targets = split_targets(&arguments.target)?;
    let tuning = arguments.tune.then(|| tune(&targets, &source, &load)).transpose()?;
    let mut options = BundleOptions::from(load)
        .with_targets(targets)
        .with_every_position(arguments.every_position)
        .with_verification(arguments.verification)
        .with_hidden_states(arguments.hidden_states)
        .with_weights(!arguments.no_weights)
        .with_laid_out_weights(!arguments.no_laid_out_weights)
        .with_replace(arguments.force);
    for (name, folder) in arguments.adapters.included() {
        options = options.with_adapter(name, folder);
    }
    let written = bundle::write(&iree(), &source, folder, &options);
    progress.close();
    let manifest = written?;
    let schedule = tuning.as_ref().map(|tuning| tuning.schedule.to_string());
    let output = output(folder, &manifest, started.elapsed().as_secs_f64(), schedule);
    print(arguments.json, &output, |out, _| {
        tuning.iter().try_for_each(|tuning| writeln!(out, "{tuning}"))?;
        writeln!(out, "{manifest}")?;
        writeln!(out, "written to {}", folder.display())
    })
}

/// Measures the schedule that programs for this machine then follow.
fn tune(targets: &[String], source: &ModelSource, load: &LoadOptions) -> Result<Tuning, Failure> {
    const HOST: &str = "llvm-cpu:host";
    if !targets.iter().any(|target| target == HOST) {
        return Err(Failure::Usage(format!("--tune measures this machine: pass {HOST} as a target")));
    }
    let tuning = iree().tune(source, load)?;
    if !tuning.kept {
        let message = "--tune keeps its result in the cache, and this system has no folder for it: set MLXCEL_CACHE_DIR";
        return Err(Failure::Usage(message.to_owned()));
    }
    Ok(tuning)
}

/// What `--json` prints.
fn output(bundle: &Path, manifest: &Manifest, seconds: f64, schedule: Option<String>) -> Value {
    let targets = manifest.targets.iter().map(|target| {
        let bytes: u64 = target.programs.iter().map(|program| program.bytes).sum();
        json!({ "target": target.target, "programs": target.programs.len(), "bytes": bytes })
    });
    let mut output = json!({
        "bundle": bundle.display().to_string(), "model_type": manifest.model.model_type, "precision": manifest.precision,
        "context": manifest.capacity, "sequences": manifest.sequences, "weights_included": manifest.weights_included,
        "targets": targets.collect::<Vec<_>>(), "files": manifest.files.len(),
        "file_bytes": manifest.files.iter().map(|file| file.bytes).sum::<u64>(), "seconds": seconds,
    });
    if let Some(room) = &manifest.adapters {
        output["adapters"] = json!({ "slots": room.slots, "rank": room.rank, "included": room.included });
    }
    if let Some(schedule) = schedule {
        output["schedule"] = schedule.into();
    }
    output
}
