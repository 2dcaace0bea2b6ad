//! Quantizes a checkpoint in any supported format, as mlx-lm's `convert --quantize` does.
//!
//! ```no_run
//! use mlxcel_models::Checkpoint;
//! use mlxcel_quantize::{QuantizeOptions, Recipe, quantize};
//!
//! let checkpoint = Checkpoint::open("models/Llama-3.2-1B")?;
//! let options = QuantizeOptions::of_recipe(Recipe::Mixed4And6, 64).with_override("*.o_proj=5".parse()?);
//! let written = quantize(&checkpoint, "models/Llama-3.2-1B-mixed", &options)?;
//! for module in &written.modules {
//!     println!("{}: {}, off by {:.4}", module.name, module.packing, module.relative_rms);
//! }
//! # Ok::<(), mlxcel_core::Error>(())
//! ```
//!
//! The embedding, all linear layers, an untied head and experts are packed if their rows are a multiple of
//! the group size. Everything else is copied. Codes, scales and biases equal those of `mlx.core.quantize` bit
//! for bit. Scales have the weight's type, or the type of its scales if it was packed already. Routers and
//! other modules that mlx-lm exempts have 8 bits unless a recipe says otherwise.
//!
//! Packed weights are unpacked row by row. Experts are stacked as mlx-lm does. What its converter does for a
//! family alone is in the family's file ([`Conversion`](mlxcel_models::Conversion)).
//!
//! [`merge`] writes a copy of a checkpoint with a LoRA or DoRA adapter merged into its weights.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod affine;
mod codec;
mod folder;
mod merge;
mod microscaling;
mod names;
mod options;
mod plan;
mod recipe;
mod workers;
mod write;

use std::path::Path;

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_models::files::parse_json;
use mlxcel_models::read::WeightRows;
pub use mlxcel_models::read::{Mode, Scheme};
use mlxcel_models::{Checkpoint, Packing};
use serde_json::Value;
use sha2::{Digest, Sha256};

pub use merge::{MergeOptions, Merged, MergedWeights, merge};
pub use options::{QuantizeOptions, WriteOptions, WriteProgressFn};
pub use recipe::{Override, Recipe};

use codec::Deviation;
use folder::Folder;
use plan::{Content, Plan, Purpose};
use write::Work;

const OPERATION: &str = "quantize checkpoint";

/// The settings of a quantized checkpoint in `config.json`, under both names by which tools look for them.
const KEYS: [&str; 2] = ["quantization", "quantization_config"];

/// Files that only describe how the weights were packed before.
const SETTINGS_BEFORE: [&str; 3] = ["quantize_config.json", "quant_config.json", plan::INDEX];

/// The result of [`quantize`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Quantized {
    /// The packed modules.
    pub modules: Vec<QuantizedModule>,
    /// The number of tensors that were not packed.
    pub kept: usize,
    /// The modules among them whose rows are not divisible into groups.
    pub unpacked: Vec<String>,
    /// The number of weight files.
    pub files: usize,
    /// The number of weight files from an interrupted run.
    pub resumed: usize,
    /// The bytes of the original weights.
    pub bytes_before: u64,
    /// The bytes of the written weights.
    pub bytes: u64,
}

/// A packed module.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct QuantizedModule {
    /// Its path, such as `model.layers.0.mlp.down_proj`.
    pub name: String,
    /// Its packing.
    pub packing: Packing,
    /// The number of values.
    pub values: u64,
    /// The root mean square of the error, relative to the root mean square of the original values.
    pub relative_rms: f64,
    /// The largest absolute error.
    pub largest: f32,
}

/// Writes a quantized copy of `checkpoint`, including its tokenizer and other small files, to the folder
/// `out`, which must not exist. The folder appears when it is complete.
///
/// Weights are processed in pieces, which takes tens of megabytes for any checkpoint.
///
/// After an error, cancellation or the end of the process, complete weight files stay in a work folder beside
/// `out`, and the next call with the same checkpoint and options resumes with them. If no weight file is
/// complete, nothing is left; a program that handles signals calls
/// [`remove_unfinished`](mlxcel_models::files::remove_unfinished) for that before it ends, and what a killed
/// process leaves, the next call removes.
///
/// # Errors
///
/// [`InvalidInput`](ErrorKind::InvalidInput) for invalid options or overrides that match no module, for a
/// checkpoint in which no matrix can be quantized, and if `out` exists or different work was interrupted
/// there; [`Unsupported`](ErrorKind::Unsupported) as for [`Checkpoint::decoder`];
/// [`Corrupt`](ErrorKind::Corrupt) for weights with infinities or NaN; [`Cancelled`](ErrorKind::Cancelled);
/// [`Io`](ErrorKind::Io).
pub fn quantize(
    checkpoint: &Checkpoint,
    out: impl AsRef<Path>,
    options: &QuantizeOptions,
) -> Result<Quantized> {
    write(checkpoint, out.as_ref(), options, Purpose { packs: true, adapter: None })
}

/// Writes a copy of `checkpoint` for `purpose`.
fn write(
    checkpoint: &Checkpoint,
    out: &Path,
    options: &QuantizeOptions,
    purpose: Purpose<'_>,
) -> Result<Quantized> {
    options.check()?;
    checkpoint.expect_own_weights()?;
    let plan = Plan::new(checkpoint, options, purpose)?;
    let config = pretty(&config(checkpoint, plan.settings.as_ref())?)?;
    let mut work = Work::new(checkpoint, options, plan.bytes_before);
    work.check()?;
    let identity = identity(checkpoint, &plan, &config, purpose)?;
    let folder = Folder::begin(OPERATION, out, &identity, options.write.restart)?;
    for name in checkpoint.side_files()? {
        work.check()?;
        if let Some(content) = checkpoint.file(&name)?
            && !SETTINGS_BEFORE.contains(&name.as_str())
        {
            folder.write(&name, &content)?;
        }
    }
    folder.write("config.json", &config)?;
    if let Some(index) = plan.index() {
        folder.write(plan::INDEX, &pretty(&index)?)?;
    }
    let (mut deviations, mut resumed) = (Vec::new(), 0);
    for file in &plan.files {
        let known = folder.finished(&file.name).and_then(|note| serde_json::from_slice(&note).ok());
        match known {
            Some(known) => {
                resumed += 1;
                deviations.extend::<Vec<Deviation>>(known);
                work.skip(file)?;
            }
            None => deviations.extend(work.write(&folder, file)?),
        }
    }
    work.check()?;
    folder.publish()?;
    let modules = modules(&plan, &deviations);
    Ok(Quantized {
        kept: plan.items().count() - modules.len(),
        modules,
        files: plan.files.len(),
        unpacked: plan.unpacked.clone(),
        resumed,
        bytes_before: plan.bytes_before,
        bytes: plan.files.iter().map(|file| file.bytes).sum(),
    })
}

/// The packed modules with what packing changed, in the order of the plan.
fn modules(plan: &Plan<'_>, deviations: &[Deviation]) -> Vec<QuantizedModule> {
    let packed = plan.items().filter_map(|item| match &item.content {
        Content::Packed { rows, codec } => Some((item, &rows.stored, codec)),
        _ => None,
    });
    let module =
        |((item, rows, codec), deviation): ((&plan::Item<'_>, &WeightRows, &codec::Codec), &Deviation)| {
            QuantizedModule {
                name: item.name.clone(),
                packing: codec.packing(),
                values: (rows.count() * rows.columns()) as u64,
                relative_rms: deviation.relative_rms(),
                largest: deviation.largest(),
            }
        };
    packed.zip(deviations).map(module).collect()
}

/// What is written and from what: the same for the same checkpoint and options.
fn identity(checkpoint: &Checkpoint, plan: &Plan<'_>, config: &[u8], purpose: Purpose<'_>) -> Result<String> {
    let mut hash = Sha256::new();
    hash.update(env!("CARGO_PKG_VERSION"));
    hash.update(checkpoint.fingerprint());
    hash.update(config);
    if let Some(adapter) = purpose.adapter {
        hash.update(&adapter.identity);
    }
    for file in &plan.files {
        hash.update(&file.name);
        hash.update(file.header()?);
    }
    Ok(format!("{:x}", hash.finalize()))
}

/// The settings of the new checkpoint, whose modules are packed by `settings` if there are some.
fn config(checkpoint: &Checkpoint, settings: Option<&Value>) -> Result<Value> {
    let content = checkpoint.file("config.json")?.unwrap_or_default();
    let corrupt = || Error::new(ErrorKind::Corrupt, OPERATION, "config.json is not a JSON object");
    let mut config: Value = parse_json("config.json", &content, "config.json is not JSON")?;
    let fields = config.as_object_mut().ok_or_else(corrupt)?;
    // The older name of compressed-tensors' settings.
    fields.remove("compression_config");
    for key in KEYS {
        match settings {
            Some(settings) => drop(fields.insert(key.to_owned(), settings.clone())),
            None => drop(fields.remove(key)),
        }
    }
    Ok(config)
}

fn pretty(value: &Value) -> Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(value).map_err(|error| {
        Error::new(ErrorKind::Internal, OPERATION, "the settings cannot be written").with_source(error)
    })?;
    text.push(b'\n');
    Ok(text)
}
