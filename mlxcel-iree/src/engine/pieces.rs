//! Weights in pieces of about a megabyte, which the device's threads load side by side.

use std::ops::Range;

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_iree_kernels::layout::Packer;
use mlxcel_models::{Checkpoint, WeightRef};

use super::weights::{OPERATION, Tensor};

/// About how many bytes a thread takes at a time: few enough that no thread works much longer than the
/// others, and that it stops within a millisecond when it is cancelled.
const PIECE_BYTES: usize = 1 << 20;

/// Some rows of a tensor, or all of a small one, and the memory that they go to.
pub(super) struct Piece<'a> {
    packer: Option<Packer>,
    source: Source<'a>,
    target: &'a mut [u8],
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
    /// How many bytes it has.
    pub(super) fn len(&self) -> usize {
        self.target.len()
    }

    /// Loads it. `room` is scratch memory, which pieces on one thread can share.
    ///
    /// # Errors
    ///
    /// Those of reading a weight; [`ErrorKind::Internal`] for a source of another length than its target.
    pub(super) fn load(self, checkpoint: &Checkpoint, room: &mut Vec<u8>) -> Result<()> {
        match (self.source, self.packer) {
            (Source::Mapped(source), packer) => pack(packer, source, self.target)?,
            (Source::Derived(weight, rows), None) => checkpoint.weight_rows(weight, rows, self.target)?,
            (Source::Derived(weight, rows), Some(packer)) => {
                let stored = grown(room, self.target.len())?;
                checkpoint.weight_rows(weight, rows, stored)?;
                packer.pack(stored, self.target);
            }
            (Source::Gathered(weight, matrix), packer) => {
                let gathered = checkpoint.weight(weight)?.bytes;
                same_length(&gathered, self.target)?;
                for (source, target) in gathered.chunks(matrix).zip(self.target.chunks_mut(matrix)) {
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

/// Cuts a tensor into pieces that begin where rows do, of one in panels where panels do.
///
/// # Errors
///
/// [`ErrorKind::Internal`] for a tensor whose parts in the files are not as long as it is, with its name.
pub(super) fn cut<'a>(tensor: &Tensor<'a>, target: &'a mut [u8], pieces: &mut Vec<Piece<'a>>) -> Result<()> {
    let (packer, matrix, row) = (tensor.packer(), tensor.matrix_bytes(), tensor.row_bytes());
    let unit = packer.map_or(row, |packer| packer.panel_bytes()).max(1);
    let len = (PIECE_BYTES / unit).max(1).saturating_mul(unit);
    let weight = &tensor.argument.tensor;
    // Panels are made of whole matrices. Parts may be smaller: a norm with factors of its own for each head
    // is a stack of vectors, which together are one matrix.
    let whole_matrices = |parts: &[&[u8]]| parts.iter().all(|part| part.len().is_multiple_of(matrix));
    let in_parts = tensor.mapped.as_deref().filter(|parts| packer.is_none() || whole_matrices(parts));
    if let Some(parts) = in_parts {
        let mut rest = target;
        for source in parts.iter().flat_map(|part| part.chunks(matrix)) {
            let split = rest.split_at_mut_checked(source.len());
            let (target, behind) = split.ok_or_else(|| tensor.misfit())?;
            rest = behind;
            let parts = source.chunks(len).zip(target.chunks_mut(len));
            pieces.extend(parts.map(|(source, target)| Piece {
                packer,
                source: Source::Mapped(source),
                target,
            }));
        }
        return if rest.is_empty() { Ok(()) } else { Err(tensor.misfit()) };
    }
    if weight.derived.is_none() {
        pieces.push(Piece { packer, source: Source::Gathered(weight, matrix), target });
        return Ok(());
    }
    let mut next = 0;
    for target in target.chunks_mut(matrix).flat_map(|matrix| matrix.chunks_mut(len)) {
        let rows = next..next + target.len() / row;
        next = rows.end;
        pieces.push(Piece { packer, source: Source::Derived(weight, rows), target });
    }
    Ok(())
}
