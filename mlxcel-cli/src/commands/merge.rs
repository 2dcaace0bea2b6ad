//! Merges an adapter into a copy of its base model: a checkpoint like any other.

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use mlxcel_models::Checkpoint;
use mlxcel_quantize::{MergeOptions, MergedWeights, QuantizeOptions, merge};
use mlxcel_session::LoadOptions;
use serde_json::json;

use crate::adapters;
use crate::model::find;
use crate::progress::Progress;
use crate::report::{Failure, expect_new, print};

/// Write a copy of a model with a LoRA adapter merged into its weights
///
/// The sums are computed in float32 and rounded to the type of the weights. If the adapter changes packed
/// weights, choose what becomes of them: floats, or packed sums.
/// Running the same command again resumes interrupted work.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The checkpoint folder, or `org/name` in the Hugging Face cache
    #[arg(short, long, value_name = "MODEL")]
    model: PathBuf,
    /// The adapter: a folder as PEFT or mlx-lm writes it, with adapter_config.json, a GGUF file, or
    /// `org/name` in the Hugging Face cache
    #[arg(long, value_name = "DIR")]
    adapter: PathBuf,
    /// The folder to write
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Write packed weights as floats, in the type of their scales
    #[arg(long, conflicts_with_all = ["bits", "group_size"])]
    dequantize: bool,
    /// Pack the sums, and all other matrices, in so many bits, as `mlxcel quantize` does
    #[arg(long, value_name = "N")]
    bits: Option<usize>,
    /// How many values of a row have a scale in common; only with --bits, defaults to 64
    #[arg(long, value_name = "N", requires = "bits")]
    group_size: Option<usize>,
    /// Discard the unfinished files of an earlier run in the same place
    #[arg(long)]
    restart: bool,
    /// How many threads compute; defaults to one for each core
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Print one JSON object
    ///
    /// It has out, tensors (the names of those that the adapter changes), files, resumed (files that an
    /// earlier run wrote), bytes, seconds.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    expect_new(&arguments.out, "choose another folder, or remove it first")?;
    let progress = Progress::new();
    let load = progress.watch(LoadOptions::default());
    let (model, adapter) =
        (find("--model", &arguments.model, &load)?, adapters::find(&arguments.adapter, &load)?);
    let started = Instant::now();
    let bar = "{spinner} merging {bar:30} {bytes}/{total_bytes} {elapsed}";
    let write = progress.write_options(bar, arguments.restart, arguments.threads);
    let mut options = MergeOptions::default().with_write(write);
    options.weights = match arguments.bits {
        Some(bits) => MergedWeights::Packed(QuantizeOptions::new(bits, arguments.group_size.unwrap_or(64))),
        None if arguments.dequantize => MergedWeights::Unpacked,
        None => MergedWeights::AsStored,
    };
    let merged = Checkpoint::from_source(&model)
        .and_then(|checkpoint| merge(&checkpoint, adapter, &arguments.out, &options));
    progress.close();
    let merged = merged?;
    let (folder, seconds) = (arguments.out.display(), started.elapsed().as_secs_f64());
    let output = json!({
        "out": folder.to_string(), "tensors": merged.tensors, "files": merged.files, "resumed": merged.resumed,
        "bytes": merged.bytes, "seconds": seconds,
    });
    print(arguments.json, &output, |out, _| {
        let (count, megabytes) = (merged.tensors.len(), merged.bytes as f64 / 1e6);
        writeln!(out, "{folder}: {count} matrices changed, {megabytes:.1} MB, in {seconds:.1} s")
    })
}
