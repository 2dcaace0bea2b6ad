//! Quantizing a checkpoint: from floats to packed words with scales and biases, as mlx-lm's `convert --quantize` does.
//!
//! ```no_run
//! use mlxcel_models::Checkpoint;
//! use mlxcel_models::quantize::{QuantizeOptions, quantize};
//!
//! let checkpoint = Checkpoint::open("models/Llama-3.2-1B")?;
//! let written = quantize(&checkpoint, "models/Llama-3.2-1B-4bit", &QuantizeOptions::new(4, 64))?;
//! println!("{} modules, {} bytes", written.modules, written.bytes);
//! # Ok::<(), mlxcel_core::Error>(())
//! ```
//!
//! The embedding, all linear layers and an untied head are packed, where groups fit into their rows; everything else stays as it
//! is. Scales and biases are of the weight's own type. Numbers are those of `mlx.core.quantize`, bit for bit.

mod affine;
mod folder;
mod plan;

use std::fmt;
use std::io::Write as _;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use mlxcel_core::{CancelToken, Control, Error, ErrorKind, LoadOptions, Result};
use serde_json::{Value, json};

use crate::checkpoint::Checkpoint;
use crate::files::parse_json;
use affine::Affine;
use folder::Folder;
use plan::{File, Item, Plan};

/// Bytes of address space that threads leave for their work.
const KEPT_ROOM: usize = 64 << 20;
const OPERATION: &str = "quantize checkpoint";

/// How many bytes of a weight are packed between two writes.
const BLOCK: usize = 16 << 20;

/// The settings of a quantized checkpoint in `config.json`, under both names by which tools look for them.
const KEYS: [&str; 2] = ["quantization", "quantization_config"];

/// Called with how many bytes of the float weights are done, and of how many.
pub type QuantizeProgressFn = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// How to quantize; start from [`QuantizeOptions::new`], or from the default of 4 bits in groups of 64.
#[derive(Clone)]
#[non_exhaustive]
pub struct QuantizeOptions {
    /// Bits of a value: 4 or 8.
    pub bits: usize,
    /// How many consecutive values of a row share a scale: 32, 64 or 128.
    pub group_size: usize,
    /// How many threads compute; one for each core where none is given.
    pub threads: Option<usize>,
    /// Told of each part that is done.
    pub progress: Option<QuantizeProgressFn>,
    /// Ends the work early.
    pub cancel: Option<CancelToken>,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Quantized {
    /// How many matrices were packed.
    pub modules: usize,
    /// How many tensors stayed as they were.
    pub kept: usize,
    /// How many files hold the weights.
    pub files: usize,
    /// Bytes of the weights before.
    pub bytes_before: u64,
    /// Bytes of the weights now.
    pub bytes: u64,
}

impl QuantizeOptions {
    /// Values of `bits` bits in groups of `group_size`.
    pub fn new(bits: usize, group_size: usize) -> Self {
        Self { bits, group_size, threads: None, progress: None, cancel: None }
    }

    /// Sets the number of threads.
    #[must_use]
    pub fn with_threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Reports to `progress`, from the calling thread.
    #[must_use]
    pub fn with_progress(mut self, progress: impl Fn(u64, u64) + Send + Sync + 'static) -> Self {
        self.progress = Some(Arc::new(progress));
        self
    }

    /// Sets what ends the work early.
    #[must_use]
    pub fn with_cancel(mut self, cancel: CancelToken) -> Self {
        self.cancel = Some(cancel);
        self
    }

    fn check(&self) -> Result<()> {
        let refuse = |field, value: usize, allowed| {
            let message = format!("{value} is not supported; supported: {allowed}");
            Err(Error::new(ErrorKind::InvalidInput, OPERATION, message).with_context("field", field))
        };
        match self {
            Self { bits, .. } if ![4, 8].contains(bits) => refuse("bits", *bits, "4, 8"),
            Self { group_size, .. } if ![32, 64, 128].contains(group_size) => {
                refuse("group_size", *group_size, "32, 64, 128")
            }
            Self { threads: Some(threads), .. } if !(1..=LoadOptions::MAX_THREADS).contains(threads) => {
                refuse("threads", *threads, "1 to 256")
            }
            _ => Ok(()),
        }
    }
}

impl Default for QuantizeOptions {
    fn default() -> Self {
        Self::new(4, 64)
    }
}

impl fmt::Debug for QuantizeOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuantizeOptions")
            .field("bits", &self.bits)
            .field("group_size", &self.group_size)
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

/// Writes `checkpoint` to the folder `out`, which must not exist, with its matrices quantized, and with its tokenizer and other
/// small files beside them. The folder appears when it is complete; on any error, and when the work is cancelled, nothing is left.
///
/// The weights pass through memory in parts, so it takes tens of megabytes, however large the checkpoint is.
///
/// # Errors
///
/// [`InvalidInput`](ErrorKind::InvalidInput) for bits, group sizes and threads that there are not, a checkpoint that is quantized
/// already or in which no matrix can be, and where something stands in the place of `out`;
/// [`Unsupported`](ErrorKind::Unsupported) as for [`Checkpoint::decoder`]; [`Corrupt`](ErrorKind::Corrupt) for weights that hold
/// infinities or no numbers; [`Cancelled`](ErrorKind::Cancelled); [`Io`](ErrorKind::Io).
pub fn quantize(
    checkpoint: &Checkpoint,
    out: impl AsRef<Path>,
    options: &QuantizeOptions,
) -> Result<Quantized> {
    options.check()?;
    checkpoint.expect_own_weights()?;
    if checkpoint.has_blocks() {
        let message = "the checkpoint is quantized already; quantize the one that it was made from";
        return Err(Error::new(ErrorKind::InvalidInput, OPERATION, message));
    }
    let config = config(checkpoint, options)?;
    let plan = Plan::new(checkpoint, options)?;
    let folder = Folder::begin(out.as_ref())?;
    let work = Work {
        control: options.cancel.as_ref().map(Control::cancelled_by).unwrap_or_default(),
        threads: threads(options),
        done: AtomicU64::new(0),
        total: plan.bytes_before,
        progress: options.progress.as_deref(),
    };
    work.control.check(OPERATION)?;
    for file in &plan.files {
        work.write(&folder, file)?;
    }
    if let Some(index) = plan.index() {
        folder.write(plan::INDEX, &pretty(&index)?)?;
    }
    for name in checkpoint.side_files()? {
        work.control.check(OPERATION)?;
        if let Some(content) = checkpoint.file(&name)? {
            folder.write(&name, &content)?;
        }
    }
    folder.write("config.json", &pretty(&config)?)?;
    work.control.check(OPERATION)?;
    folder.publish()?;
    Ok(Quantized {
        modules: plan.modules(),
        kept: plan.kept(),
        files: plan.files.len(),
        bytes_before: plan.bytes_before,
        bytes: plan.files.iter().map(|file| file.bytes).sum(),
    })
}

fn threads(options: &QuantizeOptions) -> usize {
    options.threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, NonZeroUsize::get))
}

/// The settings of the new checkpoint.
fn config(checkpoint: &Checkpoint, options: &QuantizeOptions) -> Result<Value> {
    let content = checkpoint.file("config.json")?.unwrap_or_default();
    let corrupt = || Error::new(ErrorKind::Corrupt, OPERATION, "config.json is no JSON object");
    let mut config: Value = parse_json("config.json", &content, "config.json is no JSON")?;
    let fields = config.as_object_mut().ok_or_else(corrupt)?;
    if let Some(key) = KEYS.into_iter().find(|key| fields.get(*key).is_some_and(|value| !value.is_null())) {
        let message = "the checkpoint is quantized already; quantize the one that it was made from";
        return Err(Error::new(ErrorKind::InvalidInput, OPERATION, message).with_context("field", key));
    }
    let QuantizeOptions { bits, group_size, .. } = options;
    for key in KEYS {
        let settings = json!({ "group_size": group_size, "bits": bits, "mode": "affine" });
        fields.insert(key.to_owned(), settings);
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

/// The writing of weights: what it is stopped by, and whom it tells.
struct Work<'a> {
    control: Control<'a>,
    threads: usize,
    done: AtomicU64,
    total: u64,
    progress: Option<&'a (dyn Fn(u64, u64) + Send + Sync)>,
}

impl Work<'_> {
    fn write(&self, folder: &Folder, file: &File<'_>) -> Result<()> {
        let path = folder.path(&file.name);
        let fail = |error| Error::io(OPERATION, &path, error);
        let mut target = folder.create(&file.name)?;
        target.write_all(&file.header()?).map_err(fail)?;
        for item in &file.items {
            match item {
                Item::Kept { view, .. } => {
                    for block in view.bytes.chunks(BLOCK) {
                        target.write_all(block).map_err(fail)?;
                        self.wrote(block.len())?;
                    }
                }
                Item::Packed { module, view, affine } => {
                    let columns = view.shape.last().copied().unwrap_or(1);
                    let [scales, biases] = self.pack(module, view.bytes, columns, affine, |words| {
                        target.write_all(words).map_err(fail)
                    })?;
                    target.write_all(&scales).and_then(|()| target.write_all(&biases)).map_err(fail)?;
                }
            }
        }
        // A folder that is announced by its rename must not turn out empty after a power cut.
        target.sync_all().map_err(fail)
    }

    /// Packs the rows of a matrix, hands the words to `write` in order, and answers scales and biases.
    fn pack(
        &self,
        module: &str,
        source: &[u8],
        columns: usize,
        affine: &Affine,
        mut write: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<[Vec<u8>; 2]> {
        let row = affine.source_bytes(columns);
        let block = (BLOCK / row).max(1) * row;
        let mut scales = vec![0; affine.scale_bytes(source.len())];
        let mut biases = scales.clone();
        let mut words = vec![0; affine.word_bytes(block.min(source.len()))];
        let blocks = source
            .chunks(block)
            .zip(scales.chunks_mut(affine.scale_bytes(block)))
            .zip(biases.chunks_mut(affine.scale_bytes(block)));
        for ((source, scales), biases) in blocks {
            let words = words.get_mut(..affine.word_bytes(source.len())).unwrap_or_default();
            // Whole rows, and so whole groups.
            let share = (source.len() / row).div_ceil(self.threads) * row;
            let finite = AtomicBool::new(true);
            let parts = source
                .chunks(share)
                .zip(words.chunks_mut(affine.word_bytes(share)))
                .zip(scales.chunks_mut(affine.scale_bytes(share)))
                .zip(biases.chunks_mut(affine.scale_bytes(share)));
            let parts = Mutex::new(parts);
            let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).next();
            let worker = || {
                while let Some((((source, words), scales), biases)) = next() {
                    if !affine.pack(source, words, scales, biases) {
                        finite.store(false, Ordering::Relaxed);
                    }
                }
            };
            // Where the system limits what a process may map, stacks could take all of it, and the work needs some too.
            let mut room: Vec<u8> = Vec::new();
            let _ = std::hint::black_box(&mut room).try_reserve_exact(KEPT_ROOM);
            thread::scope(|scope| {
                for _ in 1..self.threads {
                    // With threads that the system does not grant it takes longer, and that is all.
                    let thread = thread::Builder::new().name("mlxcel-quantize".to_owned());
                    if thread.spawn_scoped(scope, worker).is_err() {
                        break;
                    }
                }
                drop(room);
                worker();
            });
            if !finite.into_inner() {
                let message = "the weight holds infinities, or values that are no numbers";
                return Err(Error::new(ErrorKind::Corrupt, OPERATION, message)
                    .with_context("tensor", format_args!("{module}.weight")));
            }
            write(words)?;
            self.wrote(source.len())?;
        }
        Ok([scales, biases])
    }

    fn wrote(&self, bytes: usize) -> Result<()> {
        let done = self.done.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        if let Some(progress) = self.progress {
            progress(done, self.total);
        }
        self.control.check(OPERATION)
    }
}
