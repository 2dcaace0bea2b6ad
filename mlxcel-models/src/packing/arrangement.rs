//! Parts that files store in another arrangement, and how their rows are read.

use std::ops::Range;

use mlxcel_core::{Error, ErrorKind, Result};

use super::Part;
use super::formats::compressed::Compressed;
use super::formats::gptq::Gptq;
use super::formats::{awq, gguf, grid};
use crate::checkpoint::Checkpoint;
use crate::gguf::BlockType;

/// How a weight's elements are computed from differently arranged stored tensors.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Derived {
    /// The stored arrangement.
    pub arrangement: Arrangement,
    /// The part of the packed weight that is read from it.
    pub part: Part,
    /// The shape of the part in one stored tensor, innermost dimension last: `[…, rows, width]`.
    pub shape: Vec<usize>,
}

/// The arrangements, one for each published format; `formats/` has a file for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arrangement {
    /// The bytes of the part, in a tensor of another element type or shape.
    Bytes,
    /// Blocks of a GGUF file.
    Gguf(BlockType),
    /// Numbers shared by several rows or groups.
    Grid {
        /// How many rows share a number.
        rows: usize,
        /// How many groups of the packing share one.
        groups: usize,
        /// Whether the numbers of a row are a column of the tensor.
        transposed: bool,
    },
    /// GPTQ.
    Gptq(Gptq),
    /// AWQ, in the order of its matrix kernels.
    Awq {
        /// How many groups of the packing share a scale and a zero.
        groups: usize,
    },
    /// compressed-tensors.
    Compressed(Compressed),
}

impl Derived {
    /// The rows of one stored tensor, all leading dimensions counted.
    pub(crate) fn rows(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }

    /// Writes consecutive rows of the part, from the stored tensor called `tensor`, into `out`, which is as long as they are.
    pub(crate) fn read(
        &self,
        checkpoint: &Checkpoint,
        tensor: &str,
        rows: Range<usize>,
        out: &mut [u8],
    ) -> Result<()> {
        match self.arrangement {
            Arrangement::Gguf(block) => gguf::read(checkpoint, tensor, (block, self.part), rows, out),
            Arrangement::Grid { rows: of_rows, groups, transposed } => {
                grid::read(checkpoint, tensor, [of_rows, groups], transposed, rows, out)
            }
            Arrangement::Gptq(form) => form.read(checkpoint, self.part, tensor, rows, out),
            Arrangement::Awq { groups } => awq::read(checkpoint, groups, self.part, tensor, rows, out),
            Arrangement::Compressed(form) => form.read(checkpoint, self.part, tensor, rows, out),
            Arrangement::Bytes => {
                let (view, location) = checkpoint.located(tensor)?;
                let row = out.len().checked_div(rows.len()).unwrap_or_default();
                let stored = view.bytes.get(rows.start * row..rows.end * row);
                let Some(stored) = stored.filter(|stored| stored.len() == out.len()) else {
                    return Err(differs(tensor, location));
                };
                out.copy_from_slice(stored);
                Ok(())
            }
        }
    }
}

/// That a reference is none to this checkpoint's tensor.
pub(super) fn differs(tensor: &str, location: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, "read weight", "the reference does not fit the stored tensor")
        .with_context("tensor", tensor)
        .with_context("path", location)
}
