//! The suite `profile`: the time of each kernel of the IREE engine, for prompts and for steps of one or
//! several sequences, and what bounds them: the speed of memory, and of multiply-adds.

use std::path::PathBuf;

use anyhow::{Context, Result};
use mlxcel_core::{Backend, LoadOptions, ModelSource, Precision};
use mlxcel_iree::IreeBackend;
use mlxcel_iree::profile::Profiler;

use crate::bandwidth::Probe;
use crate::machine::Machine;
use crate::peak::{Arithmetic, Peaks};
use crate::serve::Session;

/// What is profiled.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The checkpoint
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    #[arg(long, default_value_t = Precision::Native)]
    precision: Precision,
    /// Tokens of each sequence's prompt
    #[arg(long, default_value_t = 128)]
    position: usize,
    /// Sequences that are decoded together
    #[arg(long, default_value_t = 1)]
    sequences: usize,
    /// Steps of all sequences
    #[arg(long, default_value_t = 16)]
    steps: usize,
    /// Number of threads; defaults to all cores
    #[arg(long, conflicts_with = "device")]
    threads: Option<usize>,
    /// The engine's device, such as `vulkan`; defaults to the processor
    #[arg(long)]
    device: Option<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let Machine { processor, cores, .. } = Machine::of_this_process();
    let threads = arguments.threads.unwrap_or(cores);
    let Arguments { position, sequences, steps, .. } = *arguments;
    let profiler = Profiler::new();
    let options = LoadOptions::default()
        .with_precision(arguments.precision)
        .with_sequences(sequences)
        .with_capacity(position + steps + 2);
    let options = match &arguments.device {
        Some(device) => options.with_device(device),
        None => options.with_threads(threads),
    };
    let backend = IreeBackend::new().with_profiler(&profiler);
    let model = backend.load(&ModelSource::from(arguments.model.as_path()), &options).context("loading")?;
    let mut session = Session::new(&model)?;
    // Programs are compiled, and pages exist, before anything counts.
    let mut rows = session.begin(sequences, position)?;
    session.decode(&mut rows, 1)?;
    session.close_all()?;
    profiler.take();

    let bounds = match &arguments.device {
        Some(_) => model.info().device.clone(),
        None => {
            let (bus, peaks) = (Probe::new()?.measure(threads), Peaks::measure(threads));
            let peak = |arithmetic| peaks.of(arithmetic).unwrap_or(f64::NAN) / 1e9;
            format!(
                "{processor}, {threads} threads; memory reads {:.1} GB/s; 10⁹ multiply-adds a second: float32 {:.0}, bfloat16 {:.0}, 8-bit {:.0}",
                bus / 1e9,
                peak(Arithmetic::Floats),
                peak(Arithmetic::Halves),
                peak(Arithmetic::Bytes),
            )
        }
    };
    let mut rows = session.begin(sequences, position)?;
    session.decode(&mut rows, steps)?;
    println!("{} at {} on {bounds}", arguments.model.display(), arguments.precision);
    println!(
        "a step reads {:.1} MB of weights, and at its end {:.1} MB of the cache of {sequences} sequences of {} tokens\n",
        model.info().weight_bytes as f64 / 1e6,
        session.kv_bytes() as f64 / 1e6,
        position + steps,
    );
    println!("{}", profiler.take());
    Ok(())
}
