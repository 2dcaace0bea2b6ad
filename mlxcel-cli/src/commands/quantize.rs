//! Quantizes a checkpoint: a folder a fraction of the size, which every engine opens that reads such weights.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use clap::builder::PossibleValuesParser;
use mlxcel_models::Checkpoint;
use mlxcel_quantize::{
    Mode, Override, QuantizeOptions, Quantized, QuantizedModule, Recipe, Scheme, quantize,
};
use mlxcel_session::{LoadOptions, Model, ModelSource, ScoreOptions};
use serde::Serialize;

use crate::engine::EngineChoice;
use crate::input;
use crate::model::find;
use crate::numbers::positive;
use crate::progress::Progress;
use crate::report::{self, Failure, expect_new};

/// Quantize a checkpoint as MLX does: packed values with a scale, and in the affine mode a bias, for each
/// group
///
/// Reads every checkpoint that opens, including quantized ones. Running the same command again resumes
/// interrupted work: complete files of weights are kept in a hidden folder beside OUT.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The checkpoint folder, GGUF file, or `org/name` in the Hugging Face cache
    #[arg(short, long, value_name = "MODEL")]
    model: PathBuf,
    /// The folder to write
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Quantization mode: affine, mxfp4, mxfp8, nvfp4
    #[arg(long, value_name = "NAME", default_value = "affine", value_parser = PossibleValuesParser::new(Mode::ALL.map(Mode::name)))]
    mode: String,
    /// Bits per weight: 2, 3, 4, 5, 6 or 8; defaults to 4, or the bits of the mode or recipe
    #[arg(long, value_name = "N", conflicts_with = "recipe")]
    bits: Option<usize>,
    /// How many weights share a scale: 32, 64 or 128; defaults to 64, or the size of the mode
    #[arg(long, value_name = "N")]
    group_size: Option<usize>,
    /// More bits for sensitive modules: mixed_2_6, mixed_3_4, mixed_3_6, mixed_4_6
    #[arg(long, value_name = "NAME")]
    recipe: Option<Recipe>,
    /// Pack the modules whose path fits PATTERN, in which * matches any text, in affine mode with this many
    /// bits; can be repeated, and the last one that fits applies
    #[arg(long, value_name = "PATTERN=BITS[/GROUP]")]
    tensor: Vec<Override>,
    /// The maximum megabytes of a file of weights; larger checkpoints are sharded. An interrupted run resumes
    /// after the last complete file
    #[arg(long, value_name = "MB", value_parser = positive::<u64>)]
    shard_size: Option<u64>,
    /// Discard the unfinished files of an earlier run in the same place
    #[arg(long)]
    restart: bool,
    /// How many threads compute; defaults to one for each core
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Print the perplexity of the text in FILE before and after
    #[arg(long, value_name = "FILE")]
    perplexity: Option<PathBuf>,
    /// The maximum number of tokens of the text
    #[arg(long, value_name = "N", default_value_t = 8192, requires = "perplexity")]
    perplexity_tokens: usize,
    /// The maximum number of tokens of a window of the text
    #[arg(long, value_name = "N", default_value_t = 1024, requires = "perplexity", value_parser = window)]
    context: usize,
    /// The engine that computes it: iree (or xla), mlx, portable, pjrt; defaults to MLXCEL_BACKEND, else the
    /// first of these that is compiled in
    #[arg(long, value_name = "NAME", requires = "perplexity")]
    backend: Option<String>,
    /// Print the packing of each matrix, and its error
    #[arg(long)]
    verbose: bool,
    /// Print one JSON object
    ///
    /// It has out, modules (packed matrices), kept (other tensors), unpacked (the names of matrices
    /// among them whose rows are not divisible into groups), files, resumed (files that an earlier run
    /// wrote), bytes_before, bytes, seconds, relative_rms (of all matrices together, weighted by
    /// their values), tensors (of each matrix name, packing, relative_rms, largest), and with
    /// --perplexity, perplexity: tokens, windows, context, before, after.
    #[arg(long)]
    json: bool,
}

/// A window of which at least one token can be scored.
fn window(text: &str) -> Result<usize, String> {
    let tokens = text.parse().ok().filter(|&tokens| tokens > 1);
    tokens.ok_or_else(|| "it must be a whole number of at least 2".to_owned())
}

/// What `--json` prints.
#[derive(Serialize)]
struct Output {
    #[serde(serialize_with = "report::shown")]
    out: PathBuf,
    modules: usize,
    kept: usize,
    unpacked: Vec<String>,
    files: usize,
    resumed: usize,
    bytes_before: u64,
    bytes: u64,
    seconds: f64,
    relative_rms: f64,
    tensors: Vec<Tensor>,
    #[serde(skip_serializing_if = "Option::is_none")]
    perplexity: Option<Perplexity>,
}

/// A packed matrix, and how far its values are from those before.
#[derive(Serialize)]
struct Tensor {
    name: String,
    packing: String,
    relative_rms: f64,
    largest: f32,
}

/// How likely a text is before and after.
#[derive(Serialize)]
struct Perplexity {
    tokens: usize,
    windows: usize,
    context: usize,
    before: f64,
    after: f64,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    expect_new(&arguments.out, "choose another folder, or remove it first")?;
    let text = arguments.perplexity.as_deref().map(input::file).transpose()?;
    let progress = Progress::new();
    let model = find("--model", &arguments.model, &progress.watch(LoadOptions::default()))?;
    let before = text.as_deref().map(|text| arguments.score(&model, text)).transpose()?;
    let started = Instant::now();
    let bar = "{spinner} quantizing {bar:30} {bytes}/{total_bytes} {elapsed}";
    let write = progress.write_options(bar, arguments.restart, arguments.threads);
    let options = arguments.options().with_write(write);
    let written = Checkpoint::from_source(&model)
        .and_then(|checkpoint| quantize(&checkpoint, &arguments.out, &options));
    progress.close();
    let written = written?;
    let seconds = started.elapsed().as_secs_f64();
    let perplexity = match (text, before) {
        (Some(text), Some(before)) => {
            let after = arguments.score(&arguments.out.as_path().into(), &text)?;
            Some(Perplexity { after: after.after, ..before })
        }
        _ => None,
    };
    let output = output(arguments, &written, seconds, perplexity);
    report::print(arguments.json, &output, |out, output| print(out, output, arguments.verbose))
}

impl Arguments {
    fn options(&self) -> QuantizeOptions {
        let mode = Mode::ALL.into_iter().find(|mode| mode.name() == self.mode).unwrap_or(Mode::Affine);
        let default = Scheme::of_mode(mode);
        let scheme = Scheme {
            mode,
            bits: self.bits.or(self.recipe.map(Recipe::bits)).unwrap_or(default.bits),
            group_size: self.group_size.unwrap_or(default.group_size),
        };
        let mut options = QuantizeOptions::of(scheme);
        options.recipe = self.recipe;
        options.overrides.clone_from(&self.tensor);
        if let Some(megabytes) = self.shard_size {
            options.shard_bytes = megabytes.saturating_mul(1_000_000);
        }
        options
    }

    /// The perplexity of the beginning of `text` to the model in `source`, both before and after, in windows
    /// that overlap by half.
    fn score(&self, source: &ModelSource, text: &str) -> Result<Perplexity, Failure> {
        let progress = Progress::new();
        let checkpoint = Checkpoint::from_source(source)?;
        let limit = checkpoint.decoder()?.context_length;
        drop(checkpoint);
        let load = LoadOptions::default().with_capacity(self.context.min(limit));
        let engine = EngineChoice { name: self.backend.as_deref(), ..EngineChoice::default() }.select()?;
        let model = Model::load(&engine.backend, source.clone(), &progress.watch(load))?;
        progress.close();
        let tokenizer = model.tokenizer()?;
        let mut tokens = tokenizer.tokens_before().to_vec();
        tokens.extend(tokenizer.encode(text, false)?);
        tokens.truncate(self.perplexity_tokens);
        let context = model.capabilities().context;
        let stride = (context / 2).max(1);
        let score = model.score_tokens(&tokens, &ScoreOptions::default().with_stride(stride))?;
        let windows = 1 + tokens.len().saturating_sub(context).div_ceil(stride);
        let (tokens, perplexity) = (tokens.len(), score.perplexity());
        Ok(Perplexity { tokens, windows, context, before: perplexity, after: perplexity })
    }
}

fn output(
    arguments: &Arguments,
    written: &Quantized,
    seconds: f64,
    perplexity: Option<Perplexity>,
) -> Output {
    let tensor = |module: &QuantizedModule| Tensor {
        name: module.name.clone(),
        packing: module.packing.to_string(),
        relative_rms: module.relative_rms,
        largest: module.largest,
    };
    let values: u64 = written.modules.iter().map(|module| module.values).sum();
    let squares = written.modules.iter().map(|module| module.relative_rms.powi(2) * module.values as f64);
    Output {
        out: arguments.out.clone(),
        modules: written.modules.len(),
        kept: written.kept,
        unpacked: written.unpacked.clone(),
        files: written.files,
        resumed: written.resumed,
        bytes_before: written.bytes_before,
        bytes: written.bytes,
        seconds,
        relative_rms: (squares.sum::<f64>() / values.max(1) as f64).sqrt(),
        tensors: written.modules.iter().map(tensor).collect(),
        perplexity,
    }
}

fn print(out: &mut impl Write, output: &Output, verbose: bool) -> io::Result<()> {
    if verbose {
        writeln!(out, "{:>10}  {:>10}  {:20}  matrix", "rms", "largest", "packing")?;
        for Tensor { name, packing, relative_rms, largest } in &output.tensors {
            writeln!(out, "{relative_rms:>10.6}  {largest:>10.6}  {packing:20}  {name}")?;
        }
    }
    let mut packings: Vec<&str> = Vec::new();
    for tensor in &output.tensors {
        if !packings.contains(&&*tensor.packing) {
            packings.push(&tensor.packing);
        }
    }
    let megabytes = |bytes| bytes as f64 / 1e6;
    let resumed = match output.resumed {
        0 => String::new(),
        files => format!(" ({files} of {} files were there)", output.files),
    };
    writeln!(
        out,
        "{}: {} matrices as {}, {:.1} MB instead of {:.1}, in {:.1} s{resumed}",
        output.out.display(),
        output.modules,
        packings.join(", "),
        megabytes(output.bytes),
        megabytes(output.bytes_before),
        output.seconds
    )?;
    let worst = output.tensors.iter().max_by(|a, b| a.relative_rms.total_cmp(&b.relative_rms));
    if let Some(Tensor { name, relative_rms, .. }) = worst {
        writeln!(out, "relative error {:.5}, at most {relative_rms:.5} ({name})", output.relative_rms)?;
    }
    if let [first, ..] = &output.unpacked[..] {
        let names = if verbose { output.unpacked.join(", ") } else { format!("such as {first}") };
        writeln!(
            out,
            "{} matrices are not packed, as their rows are not divisible into groups: {names}",
            output.unpacked.len()
        )?;
    }
    if let Some(Perplexity { tokens, windows, context, before, after }) = &output.perplexity {
        writeln!(
            out,
            "perplexity {before:.4} before, {after:.4} after ({tokens} tokens in {windows} windows of {context})"
        )?;
    }
    Ok(())
}
