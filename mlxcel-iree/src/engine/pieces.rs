//! Weights in pieces of about a megabyte, which the device's threads load side by side.

use std::ops::Range;

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_iree_kernels::layout::Packer;
use mlxcel_models::{Checkpoint, WeightRef};

use super::weights::{OPERATION, Tensor};

/// About how many bytes a thread takes at a time: few enough that no thread works much longer than the
/// others, and that it stops within a millisecond when it is cancelled.
const PIECE_BYTES: usize = 1 << 20;

/// Some rows of a tensor, or all of a small one, and where they go among all weights.
pub(super) struct Piece<'a> {
    packer: Option<Packer>,
    source: Source<'a>,
    pub(super) place: Range<usize>,
}

enum Source<'a> {
    /// Rows in a mapped file.
    Mapped(&'a [u8]),
    /// Rows that are computed from what the file holds.
    Derived(&'a WeightRef, Range<usize>),
    /// A whole tensor that must be gathered, and the bytes of each of its matrices.
    Gathered(&'a WeightRef, usize),
}

impl Piece<'_> {
    /// Loads it into its `target`. `room` is scratch memory, which pieces on one thread can share.
    ///
    /// # Errors
    ///
    /// Those of reading a weight; [`ErrorKind::Internal`] for a source of another length than its target.
    pub(super) fn load(self, target: &mut [u8], checkpoint: &Checkpoint, room: &mut Vec<u8>) -> Result<()> {
        match (self.source, self.packer) {
            (Source::Mapped(source), packer) => pack(packer, source, target)?,
            (Source::Derived(weight, rows), None) => checkpoint.weight_rows(weight, rows, target)?,
            (Source::Derived(weight, rows), Some(packer)) => {
                let stored = grown(room, target.len())?;
                checkpoint.weight_rows(weight, rows, stored)?;
                packer.pack(stored, target);
            }
            (Source::Gathered(weight, matrix), packer) => {
                let gathered = checkpoint.weight(weight)?.bytes;
                same_length(&gathered, target)?;
                for (source, target) in gathered.chunks(matrix).zip(target.chunks_mut(matrix)) {
                    pack(packer, source, target)?;
                }
            }
        }
        Ok(())
    }
}

fn pack(packer: Option<Packer>, source: &[u8], target: &mut [u8]) -> Result<()> {
    same_length(source, target)?;
    match packer {
        Some(packer) => packer.pack(source, target),
        None => target.copy_from_slice(source),
    }
    Ok(())
}

/// Fails if `source` cannot be copied to `target`.
fn same_length(source: &[u8], target: &[u8]) -> Result<()> {
    if source.len() == target.len() {
        return Ok(());
    }
    let message = format!("{} bytes were read for {}", source.len(), target.len());
    Err(Error::new(ErrorKind::Internal, OPERATION, message))
}

/// The first `bytes` of `room`, which grows to that.
fn grown(room: &mut Vec<u8>, bytes: usize) -> Result<&mut [u8]> {
    if let Some(missing) = bytes.checked_sub(room.len()) {
        room.try_reserve_exact(missing).map_err(|_| Error::out_of_memory(OPERATION, bytes))?;
        room.resize(bytes, 0);
    }
    Ok(&mut room[..bytes])
}

/// Cuts a tensor, which goes to `place` among all weights, into pieces that begin where rows do, of one in
/// panels where panels do.
///
/// # Errors
///
/// [`ErrorKind::Internal`] for a tensor whose parts in the files are not as long as it is, with its name.
pub(super) fn cut<'a>(tensor: &Tensor<'a>, place: &Range<usize>, pieces: &mut Vec<Piece<'a>>) -> Result<()> {
    let (packer, matrix, row) = (tensor.packer(), tensor.matrix_bytes(), tensor.row_bytes());
    let unit = packer.map_or(row, |packer| packer.panel_bytes()).max(1);
    let len = (PIECE_BYTES / unit).max(1).saturating_mul(unit);
    let weight = &tensor.argument.tensor;
    let first = place.start;
    let mut start = first;
    let mut next = |bytes: usize| {
        let begun = start;
        start += bytes;
        begun..start
    };
    // Panels are made of whole matrices. Parts may be smaller: a norm with factors of its own for each head
    // is a stack of vectors, which together are one matrix.
    let whole_matrices = |parts: &[&[u8]]| parts.iter().all(|part| part.len().is_multiple_of(matrix));
    let in_parts = tensor.mapped.as_deref().filter(|parts| packer.is_none() || whole_matrices(parts));
    if let Some(parts) = in_parts {
        if parts.iter().map(|part| part.len()).sum::<usize>() != place.len() {
            return Err(tensor.misfit());
        }
        for source in parts.iter().flat_map(|part| part.chunks(matrix)).flat_map(|part| part.chunks(len)) {
            pieces.push(Piece { packer, source: Source::Mapped(source), place: next(source.len()) });
        }
        return Ok(());
    }
    if weight.derived.is_none() {
        pieces.push(Piece { packer, source: Source::Gathered(weight, matrix), place: place.clone() });
        return Ok(());
    }
    for matrix in chunks(place.len(), matrix).flat_map(|matrix| chunks(matrix, len)) {
        let place = next(matrix);
        let rows = (place.start - first) / row..(place.end - first) / row;
        pieces.push(Piece { packer, source: Source::Derived(weight, rows), place });
    }
    Ok(())
}

/// The lengths of the chunks of `total`.
fn chunks(total: usize, chunk: usize) -> impl Iterator<Item = usize> {
    (0..total).step_by(chunk).map(move |start| chunk.min(total - start))
}

/// Splits memory, whose first byte is at `start` among all weights, into the targets of pieces, which are in
/// order; what lies between them is zeroed.
pub(super) fn targets<'a, 'b>(
    mut memory: &'b mut [u8],
    mut start: usize,
    pieces: Vec<Piece<'a>>,
) -> Vec<(Piece<'a>, &'b mut [u8])> {
    let target = |piece: Piece<'a>| {
        let (gap, rest) = std::mem::take(&mut memory).split_at_mut(piece.place.start - start);
        let (target, rest) = rest.split_at_mut(piece.place.len());
        gap.fill(0);
        (memory, start) = (rest, piece.place.end);
        (piece, target)
    };
    pieces.into_iter().map(target).collect()
}
