//! Lays weights out in a file of the cache, from which they are mapped then and whenever the model is opened
//! again.
//!
//! They are put into panels window by window, in memory that is used again, and written in blocks by all
//! threads of the device.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use mlxcel_core::{Control, Error, LoadOptions, Result};
use mlxcel_graph::WeightArgument;
use mlxcel_iree_compile::cache::{BLOCK, NewWeights, checksum};
use mlxcel_iree_kernels::Layouts;
use mlxcel_iree_runtime::{HostMemory, MappedFile};
use mlxcel_iree_target::laid_out::Places;
use mlxcel_iree_target::threads::share_out;
use mlxcel_models::Checkpoint;

use super::pieces::{Piece, cut, targets};
use super::weights::{LaidOutWeights, OPERATION, Tensor, fill, total};
use super::work::Progress;

/// About how much is laid out before it is written: few enough bytes to be no burden on memory, and enough to
/// share them out. Of tests' models there are several.
pub(super) const WINDOW: usize = if cfg!(test) { BLOCK } else { 32 * BLOCK };

/// The weights in `file`, mapped.
///
/// # Errors
///
/// Those of the operating system.
pub(crate) fn map(file: &File, arguments: &[WeightArgument]) -> io::Result<LaidOutWeights> {
    let content = Arc::new(MappedFile::new(file)?);
    Ok(LaidOutWeights { content, places: Places::of(arguments) })
}

/// Lays the weights of a model out in `new`, and maps them; none where the file could not be written, or if
/// the checkpoint has no longer the [stamp](Checkpoint::stamp) under which they are kept: then its files were
/// written meanwhile, and some of the bytes are of the one content and some of the other. Both are logged.
///
/// # Errors
///
/// Those of [`on_device`](super::weights::on_device).
pub(crate) fn keep(
    new: NewWeights,
    threads: usize,
    (checkpoint, stamp): (&Checkpoint, &str),
    arguments: &[WeightArgument],
    layouts: &Layouts,
    options: &LoadOptions,
) -> Result<Option<LaidOutWeights>> {
    let tensors = Tensor::all(checkpoint, arguments, layouts)?;
    let control = options.cancel.as_ref().map(Control::cancelled_by).unwrap_or_default();
    let progress = Progress::new(total(&tensors), options.progress.as_ref());
    let mut pieces = Vec::new();
    for (tensor, range) in tensors.iter().zip(Places::of(arguments).ranges()) {
        // Tensors are smaller than the address space, and so is what memory or a file can hold of them here.
        cut(tensor, &(range.start as usize..range.end as usize), &mut pieces)?;
    }
    let windows = windows(pieces);
    let largest = windows.iter().map(|window| window.end - window.start).max().unwrap_or_default();
    let mut memory = HostMemory::for_filling(largest)?;
    let memory = memory.as_mut_slice();
    let mut sums = Vec::new();
    // How many bytes of the window's first block lie in memory already.
    let mut carried = 0;
    for window in windows {
        let filled = &mut memory[carried..window.end - window.start];
        let pieces = targets(filled, window.start + carried, window.pieces);
        fill(threads, checkpoint, pieces, &control, &progress)?;
        let filled = window.end - window.start;
        let written = if window.is_last { filled } else { filled - filled % BLOCK };
        match write(&new, window.start, &memory[..written], threads) {
            Ok(blocks) => sums.extend(blocks),
            Err(error) => return Ok(not_kept(error)),
        }
        memory.copy_within(written..filled, 0);
        carried = filled - written;
    }
    if !still_has(checkpoint, stamp) {
        return Ok(not_kept("the checkpoint's files were changed while they were read"));
    }
    let model = checkpoint.model_type();
    let finished = new.finish(sums, &format!("weights of {model}"), &layouts.to_string());
    Ok(finished.and_then(|file| map(&file, arguments)).map_or_else(not_kept, Some))
}

/// Whether the files of a checkpoint have this stamp now; the one that is open knows only the times at which
/// it was opened.
fn still_has(checkpoint: &Checkpoint, stamp: &str) -> bool {
    let now = checkpoint.reopen().ok().flatten().and_then(|now| now.stamp());
    now.is_some_and(|now| now == stamp)
}

fn not_kept(error: impl fmt::Display) -> Option<LaidOutWeights> {
    tracing::warn!(%error, "the model's weights could not be kept in the cache");
    None
}

/// Consecutive pieces whose bytes are in memory at once.
struct Window<'a> {
    /// Where its first block begins among all weights.
    start: usize,
    end: usize,
    pieces: Vec<Piece<'a>>,
    is_last: bool,
}

fn windows(pieces: Vec<Piece<'_>>) -> Vec<Window<'_>> {
    let mut windows = Vec::new();
    let (mut start, mut end, mut collected) = (0, 0, Vec::new());
    for piece in pieces {
        if end - start >= WINDOW {
            let pieces = std::mem::take(&mut collected);
            windows.push(Window { start, end, pieces, is_last: false });
            start = end - end % BLOCK;
        }
        end = piece.place.end;
        collected.push(piece);
    }
    windows.push(Window { start, end, pieces: collected, is_last: true });
    windows
}

/// Writes bytes to their place in the file, and returns the checksum of each block.
fn write(new: &NewWeights, start: usize, bytes: &[u8], threads: usize) -> Result<Vec<u32>> {
    let mut sums = vec![0; bytes.len().div_ceil(BLOCK)];
    let blocks = bytes.chunks(BLOCK).zip(&mut sums).enumerate().collect();
    share_out(OPERATION, threads, blocks, |(index, (block, sum))| {
        *sum = checksum(block);
        let written = new.file().write_all_at(block, (start + index * BLOCK) as u64);
        written.map_err(|error| Error::io(OPERATION, new.path(), error))
    })?;
    Ok(sums)
}
