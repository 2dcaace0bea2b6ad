//! Measures which schedule of kernels is fastest on this machine, and keeps it for the IREE engine.
#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use mlxcel_examples::{Failure, Progress, bundled, json_line, launch, place};
use mlxcel_session::iree::tune::Tuning;
use mlxcel_session::{LoadOptions, ModelSource, Precision};
use serde::Serialize;

/// Measure which schedule of kernels is fastest for a model on this machine, and keep it in the cache of compiled programs.
///
/// It takes some seconds, in which nothing else should load the machine. Models with the same matrices, and bundles of them for this
/// processor, use the schedule from then on; `cache prune --all` forgets it. Exit status: 0; 2 for bad arguments or input; 1 for
/// anything else; then one line on standard error says what went wrong.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The checkpoint folder, GGUF file, or `org/name` in the Hugging Face cache; defaults to the bundled story teller
    #[arg(long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// The rounding that the model will run with: exact (float32), native (the checkpoint's own type), fast
    #[arg(long, value_name = "NAME", default_value_t)]
    precision: Precision,
    /// The number of threads; defaults to one per core
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Print one JSON object: weights, schedule, kept, and comparisons, each with rows and candidates (schedule, milliseconds)
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Output {
    weights: String,
    schedule: String,
    kept: bool,
    comparisons: Vec<ComparisonOutput>,
}

#[derive(Serialize)]
struct ComparisonOutput {
    rows: usize,
    candidates: Vec<Candidate>,
}

#[derive(Serialize)]
struct Candidate {
    schedule: String,
    milliseconds: f64,
}

fn main() -> ExitCode {
    launch(|arguments| run(&arguments))
}

fn run(arguments: &Arguments) -> Result<(), Failure> {
    let progress = Progress::new();
    let mut load = LoadOptions::default().with_precision(arguments.precision);
    load.threads = arguments.threads;
    let load = progress.watch(load);
    let model = place(arguments.model.as_deref(), &load)?;
    let source = model.map_or_else(bundled::storyteller, ModelSource::Folder);
    let tuned = mlxcel_examples::iree().tune(&source, &load);
    progress.close();
    let tuning = tuned?;
    let mut out = io::stdout().lock();
    if arguments.json {
        json_line(&mut out, &output(tuning))?;
    } else {
        writeln!(out, "{tuning}")?;
        if !tuning.kept {
            writeln!(out, "not kept: this system has no cache folder, and MLXCEL_CACHE_DIR names none")?;
        }
    }
    Ok(out.flush()?)
}

fn output(tuning: Tuning) -> Output {
    let comparisons = tuning.comparisons.into_iter().map(|comparison| ComparisonOutput {
        rows: comparison.rows,
        candidates: comparison
            .candidates
            .into_iter()
            .map(|(schedule, time)| Candidate {
                schedule: schedule.to_string(),
                milliseconds: time.as_secs_f64() * 1e3,
            })
            .collect(),
    });
    Output {
        comparisons: comparisons.collect(),
        weights: tuning.weights,
        schedule: tuning.schedule.to_string(),
        kept: tuning.kept,
    }
}
