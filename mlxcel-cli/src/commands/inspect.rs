//! Describes a checkpoint: its network, weights, memory, and which engines run it.

use std::io::{self, Write};

use clap::Args;
use mlxcel_models::Checkpoint;
use mlxcel_session::{LoadOptions, ModelSource, Precision};

use crate::engine::{EngineChoice, names, path};
use crate::inspection::{CacheType, EngineAnswer, Inspection};
use crate::model::SourceArguments;
use crate::numbers::positive;
use crate::progress::Progress;
use crate::report::{Failure, json_line};

/// Describe a checkpoint: network, weights, quantization, memory, and the engines that run it
///
/// Each engine loads the checkpoint, which is the only reliable answer; the engine iree compiles for this the
/// first time. `--no-load` leaves engines out and reads only the configuration and shapes. The exit status is
/// 0 even if no engine can run it.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    source: SourceArguments,
    /// The tokens per sequence to compute memory for; defaults to the model's context
    #[arg(long, value_name = "N", value_parser = positive::<usize>)]
    context: Option<usize>,
    /// The number of sequences to compute memory for
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    sequences: u16,
    /// The cache type to compute memory for: f32, bf16, f16 or int8; defaults to the checkpoint's type of
    /// activations
    #[arg(long, value_name = "TYPE", value_parser = cache_type)]
    kv_cache: Option<CacheType>,
    /// An engine to ask; may be given more than once; defaults to every one that is compiled in
    #[arg(long, value_name = "NAME", conflicts_with = "no_load")]
    backend: Vec<String>,
    /// Numeric precision: exact (float32), native (the checkpoint's own type), fast
    #[arg(long, value_name = "NAME", default_value_t = Precision::Native)]
    precision: Precision,
    /// Do not load the model
    #[arg(long)]
    no_load: bool,
    /// Trust the model if it is a bundle, and run its compiled programs (machine code)
    #[arg(long)]
    trust_bundle: bool,
    /// Also report how the model is distributed over this many devices of the PJRT plugin, and the
    /// collectives of its programs, which are compiled for that
    #[cfg(feature = "pjrt")]
    #[arg(long, value_name = "N", conflicts_with = "json")]
    mesh: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn cache_type(name: &str) -> Result<CacheType, String> {
    CacheType::named(name).ok_or_else(|| "use f32, bf16, f16 or int8".to_owned())
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let progress = Progress::new();
    let load = progress.watch(LoadOptions::default());
    let model = arguments.source.locate(&load)?;
    let checkpoint = Checkpoint::from_source(&model)?;
    let capacity = arguments.context;
    let sequences = usize::from(arguments.sequences);
    let mut inspection = Inspection::new(&checkpoint, capacity, sequences, arguments.kv_cache)?;
    drop(checkpoint);
    inspection.engines = engines(arguments, &model, capacity, &progress)?;
    let mut out = io::stdout().lock();
    if arguments.json {
        json_line(&mut out, &inspection)?;
    } else {
        write!(out, "{inspection}")?;
    }
    #[cfg(feature = "pjrt")]
    if let Some(devices) = arguments.mesh {
        let mut load = LoadOptions::default().with_precision(arguments.precision);
        load.capacity = capacity;
        let engine = mlxcel_session::pjrt::PjrtBackend::new().with_mesh(devices);
        write!(out, "\n{}", engine.inspect(&model, &load)?)?;
    }
    Ok(out.flush()?)
}

/// What each engine says.
fn engines(
    arguments: &Arguments,
    model: &ModelSource,
    capacity: Option<usize>,
    progress: &Progress,
) -> Result<Vec<EngineAnswer>, Failure> {
    let names = names(&arguments.backend);
    if arguments.no_load {
        return Ok(names.iter().map(|name| EngineAnswer::not_asked(name)).collect());
    }
    let mut load = LoadOptions::default().with_precision(arguments.precision);
    load.capacity = capacity;
    let load = progress.watch(load);
    let ask = |name: String| {
        let trust = path(model).filter(|_| arguments.trust_bundle);
        let engine = EngineChoice { name: Some(&name), trust, ..EngineChoice::default() }.select()?;
        let loaded = engine.backend.load(model, &load);
        Ok(EngineAnswer::of(engine.backend.name(), loaded.as_deref()))
    };
    let answers = names.into_iter().map(ask).collect();
    progress.close();
    answers
}
