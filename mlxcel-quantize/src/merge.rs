//! Merges an adapter into a copy of its base model.
//!
//! The copy has the files of the base model, byte for byte, except for the values of the weights that the
//! adapter changes: `W + s · B A`, computed in float32 and rounded once to the type of the weight. Packed
//! weights are unpacked or packed again, in files of another layout.

mod product;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use mlxcel_core::{Error, ModelSource, Result, setters};
use mlxcel_models::{AdapterChanges, Checkpoint};
use sha2::{Digest, Sha256};

use crate::folder::Folder;
use crate::options::{QuantizeOptions, WriteOptions};
use crate::plan::{INDEX, Purpose};
use crate::workers::{BLOCK, COPIED, TASK, Workers, check_threads};
use product::Change;

pub(crate) const OPERATION: &str = "merge adapter";

/// How [`merge`] writes weights.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum MergedWeights {
    /// As the base model has them, which must be floats where the adapter changes them.
    #[default]
    AsStored,
    /// As floats: packed weights are unpacked, in the type of their scales or of the model's activations.
    Unpacked,
    /// Packed by these options, whose [`write`](QuantizeOptions::write) is that of [`MergeOptions`]. The sums
    /// are packed once, from float32.
    Packed(QuantizeOptions),
}

/// Options of [`merge`].
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct MergeOptions {
    /// How weights are written.
    pub weights: MergedWeights,
    /// How the files are written.
    pub write: WriteOptions,
}

impl MergeOptions {
    setters! {
        /// Sets how weights are written.
        with_weights(weights: MergedWeights) => weights = weights;

        /// Sets how the files are written.
        with_write(write: WriteOptions) => write = write;
    }
}

/// The result of [`merge`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Merged {
    /// The names of the tensors that the adapter changes.
    pub tensors: Vec<String>,
    /// The number of weight files.
    pub files: usize,
    /// The number of weight files from an interrupted run.
    pub resumed: usize,
    /// The bytes of all weight files.
    pub bytes: u64,
}

/// Writes a copy of `checkpoint` with the adapter in `adapter` merged into its weights to the folder `out`,
/// which must not exist. The folder appears when it is complete, and interrupted work is resumed as by
/// [`quantize`](crate::quantize).
///
/// ```no_run
/// use mlxcel_models::Checkpoint;
/// use mlxcel_quantize::{MergeOptions, merge};
///
/// let checkpoint = Checkpoint::open("models/Llama-3.2-1B")?;
/// let merged = merge(&checkpoint, "adapters/poems", "models/Llama-3.2-1B-poems", &MergeOptions::default())?;
/// println!("{} tensors changed", merged.tensors.len());
/// # Ok::<(), mlxcel_core::Error>(())
/// ```
///
/// # Errors
///
/// [`Unsupported`](mlxcel_core::ErrorKind::Unsupported) for a GGUF file, for a weight that the adapter
/// changes and that is packed if weights stay [as they are stored](MergedWeights::AsStored), and for a merged
/// value that the weight's type cannot hold, each by its name, and as for [`Checkpoint::decoder`],
/// [`AdapterChanges::read`] and [`quantize`](crate::quantize);
/// [`InvalidInput`](mlxcel_core::ErrorKind::InvalidInput) if `out` exists, different work was interrupted
/// there, or the adapter is of another model; [`Corrupt`](mlxcel_core::ErrorKind::Corrupt) for damaged files;
/// [`Cancelled`](mlxcel_core::ErrorKind::Cancelled); [`Io`](mlxcel_core::ErrorKind::Io).
pub fn merge(
    checkpoint: &Checkpoint,
    adapter: impl Into<ModelSource>,
    out: impl AsRef<Path>,
    options: &MergeOptions,
) -> Result<Merged> {
    check_threads(OPERATION, options.write.threads)?;
    checkpoint.expect_own_weights()?;
    let decoder = checkpoint.decoder()?;
    if decoder.gguf_architecture.is_some() {
        let message =
            "adapters are merged into checkpoints in safetensors; name that of the GGUF file's model";
        return Err(Error::unsupported(OPERATION, message).with_context("field", "model"));
    }
    let adapter = AdapterChanges::read(&adapter.into(), checkpoint, &decoder)?;
    // In files of another layout, whose matrices are packed or not.
    let anew = match &options.weights {
        MergedWeights::AsStored => None,
        MergedWeights::Unpacked => Some((QuantizeOptions::default(), false)),
        MergedWeights::Packed(packing) => Some((packing.clone(), true)),
    };
    if let Some((mut packing, packs)) = anew {
        packing.write.clone_from(&options.write);
        let purpose = Purpose { packs, adapter: Some(&adapter) };
        let written = crate::write(checkpoint, out.as_ref(), &packing, purpose)?;
        let tensors = adapter.modules.keys().map(|module| format!("{module}.weight")).collect();
        return Ok(Merged { tensors, files: written.files, resumed: written.resumed, bytes: written.bytes });
    }
    let changes = product::changes(checkpoint, &adapter)?;
    let files: Vec<_> = checkpoint.weight_files().collect();
    let bytes = files.iter().map(|(_, content)| content.len() as u64).sum();
    let mut workers = Workers::new(OPERATION, &options.write, bytes);
    workers.check()?;

    let mut hash = Sha256::new();
    for part in [env!("CARGO_PKG_VERSION"), OPERATION, &checkpoint.fingerprint(), &adapter.identity] {
        hash.update(part);
    }
    let identity = format!("{:x}", hash.finalize());
    let folder = Folder::begin(OPERATION, out.as_ref(), &identity, options.write.restart)?;
    let mut names = checkpoint.side_files()?;
    names.extend(["config.json", INDEX].map(str::to_owned));
    for name in names {
        if let Some(content) = checkpoint.file(&name)? {
            folder.write(&name, &content)?;
        }
    }
    let mut resumed = 0;
    for (name, content) in &files {
        if folder.finished(name).is_some() {
            resumed += 1;
            workers.wrote(content.len() as u64)?;
            continue;
        }
        let mut file = folder.create()?;
        write(&mut workers, &mut file, &folder.place(name), content, &changes)?;
        folder.finish(&file, name, &[])?;
    }
    folder.publish()?;
    let tensors = changes.into_iter().map(|change| change.tensor).collect();
    Ok(Merged { tensors, files: files.len(), resumed, bytes })
}

/// Writes a file with this content, in which the values of `changes` are others.
fn write(
    workers: &mut Workers<'_>,
    file: &mut File,
    path: &Path,
    content: &[u8],
    changes: &[Change<'_>],
) -> Result<()> {
    let mut write = |workers: &mut Workers<'_>, bytes: &[u8]| {
        file.write_all(bytes).map_err(|error| Error::io(OPERATION, path, error))?;
        workers.wrote(bytes.len() as u64)
    };
    // By their place in the file.
    let places: BTreeMap<usize, &Change<'_>> =
        changes.iter().filter_map(|change| Some((place(content, change.bytes)?.start, change))).collect();
    let mut at = 0;
    for (start, change) in places {
        for block in content.get(at..start).unwrap_or_default().chunks(COPIED) {
            write(workers, block)?;
        }
        at = start + change.bytes.len();
        let rows = change.rows();
        let rows_of_task = (TASK / change.columns.max(1)).max(1);
        for first in (0..rows).step_by((BLOCK / TASK) * rows_of_task) {
            let block = first..rows.min(first + (BLOCK / TASK) * rows_of_task);
            let values = merged(workers, change, block, rows_of_task)?;
            write(workers, &values)?;
        }
    }
    content.get(at..).unwrap_or_default().chunks(COPIED).try_for_each(|block| write(workers, block))
}

/// The merged values of some rows, which threads compute.
fn merged(
    workers: &Workers<'_>,
    change: &Change<'_>,
    block: Range<usize>,
    rows_of_task: usize,
) -> Result<Vec<u8>> {
    let width = change.columns * change.float.bytes();
    let mut merged = vec![0; block.len() * width];
    let tasks = block.step_by(rows_of_task).zip(merged.chunks_mut(rows_of_task * width));
    let result = Mutex::new(Ok(()));
    workers.share_out(
        tasks,
        || (),
        |(), (first, out)| {
            if let Err(error) = change.merge(first, out) {
                *result.lock().unwrap_or_else(PoisonError::into_inner) = Err(error);
            }
        },
    );
    result.into_inner().unwrap_or_else(PoisonError::into_inner).map(|()| merged)
}

/// Where `part` is in `whole`, if it is a part of it.
fn place(whole: &[u8], part: &[u8]) -> Option<Range<usize>> {
    let start = part.as_ptr().addr().checked_sub(whole.as_ptr().addr())?;
    let end = start.checked_add(part.len())?;
    (end <= whole.len()).then_some(start..end)
}
