//! Measures which schedule of kernels is fastest on this machine, and keeps it for the IREE engine.

use std::io::Write;

use clap::Args;
use mlxcel_session::iree::tune::Tuning;
use mlxcel_session::{LoadOptions, Precision};
use serde_json::{Value, json};

use crate::engine::iree;
use crate::model::SourceArguments;
use crate::progress::Progress;
use crate::report::{Failure, print};

/// Measure which schedule of kernels is fastest for a model on this machine, and keep it
///
/// This lasts some seconds, in which nothing else should load the machine. Models with the same matrices, and
/// bundles of them for this CPU, use the schedule from then on; it is kept in the cache of compiled programs,
/// and `mlxcel cache prune --all` forgets it.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    source: SourceArguments,
    /// The rounding that the model will run with: exact (float32), native (the checkpoint's own type), fast
    #[arg(long, value_name = "NAME", default_value_t)]
    precision: Precision,
    /// The number of threads; defaults to one per core
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Print one JSON object: weights, schedule, kept, and comparisons, each with rows and candidates
    /// (schedule, milliseconds)
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let progress = Progress::new();
    let mut load = LoadOptions::default().with_precision(arguments.precision);
    load.threads = arguments.threads;
    let load = progress.watch(load);
    let source = arguments.source.locate(&load)?;
    let tuned = iree().tune(&source, &load);
    progress.close();
    let tuning = tuned?;
    print(arguments.json, &output(&tuning), |out, _| {
        writeln!(out, "{tuning}")?;
        if tuning.kept {
            return Ok(());
        }
        writeln!(out, "not kept: this system has no cache folder, and MLXCEL_CACHE_DIR names none")
    })
}

/// What `--json` prints.
fn output(tuning: &Tuning) -> Value {
    let comparisons = tuning.comparisons.iter().map(|comparison| {
        let candidates = comparison.candidates.iter().map(|(schedule, time)| {
            json!({ "schedule": schedule.to_string(), "milliseconds": time.as_secs_f64() * 1e3 })
        });
        json!({ "rows": comparison.rows, "candidates": candidates.collect::<Vec<_>>() })
    });
    json!({
        "weights": tuning.weights, "schedule": tuning.schedule.to_string(), "kept": tuning.kept,
        "comparisons": comparisons.collect::<Vec<_>>(),
    })
}
