//! Quantizes a checkpoint: a folder a quarter or half the size, which every engine opens that reads such weights.
#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use mlxcel_examples::{Failure, Progress, launch};
use mlxcel_models::Checkpoint;
use mlxcel_models::quantize::{QuantizeOptions, quantize};
use serde::Serialize;

/// Quantize a checkpoint as MLX does: packed values with a scale and a bias for each group.
///
/// Exit status: 0; 2 for bad arguments or input; 1 for anything else (such as a full disk); then one line on standard error says
/// what went wrong, and nothing is left behind.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The checkpoint folder, with weights in float32, float16 or bfloat16
    model: PathBuf,
    /// The folder to write
    out: PathBuf,
    /// Bits of a value: 4 or 8
    #[arg(long, value_name = "N", default_value_t = 4)]
    bits: usize,
    /// How many values share a scale: 32, 64 or 128
    #[arg(long, value_name = "N", default_value_t = 64)]
    group_size: usize,
    /// How many threads compute; one for each core where none is given
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Print one JSON object: out, modules (packed matrices), kept (other tensors), files, bytes_before, bytes, seconds
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Output {
    out: PathBuf,
    modules: usize,
    kept: usize,
    files: usize,
    bytes_before: u64,
    bytes: u64,
    seconds: f64,
}

fn main() -> ExitCode {
    launch(run)
}

fn run(arguments: Arguments) -> Result<(), Failure> {
    let started = Instant::now();
    let progress = Progress::new();
    let shown = progress.clone();
    let mut options = QuantizeOptions::new(arguments.bits, arguments.group_size)
        .with_progress(move |done, total| shown.show_quantized(done, total));
    options.threads = arguments.threads;
    let written = Checkpoint::open(&arguments.model)
        .and_then(|checkpoint| quantize(&checkpoint, &arguments.out, &options));
    progress.close();
    let written = written?;
    let output = Output {
        out: arguments.out,
        modules: written.modules,
        kept: written.kept,
        files: written.files,
        bytes_before: written.bytes_before,
        bytes: written.bytes,
        seconds: started.elapsed().as_secs_f64(),
    };
    let mut out = io::stdout().lock();
    if arguments.json {
        serde_json::to_writer(&mut out, &output).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        let megabytes = |bytes| bytes as f64 / 1e6;
        writeln!(
            out,
            "{}: {} matrices in {} bits, {:.1} MB instead of {:.1}, in {:.1} s",
            output.out.display(),
            output.modules,
            arguments.bits,
            megabytes(output.bytes),
            megabytes(output.bytes_before),
            output.seconds
        )?;
    }
    Ok(out.flush()?)
}
