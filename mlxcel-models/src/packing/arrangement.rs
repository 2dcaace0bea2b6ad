//! Parts that files hold in another arrangement, and how their rows are read.

use std::ops::Range;

use mlxcel_core::{Error, ErrorKind, Result};

use super::Part;
use super::formats::gguf;
use crate::checkpoint::Checkpoint;
use crate::gguf::BlockType;

/// How a weight's elements are computed from stored tensors that arrange them otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Derived {
    /// The arrangement of what is stored.
    pub arrangement: Arrangement,
    /// Which part of the packed weight is read out of it.
    pub part: Part,
    /// The shape of the part in one stored tensor, innermost dimension last: `[…, rows, width]`.
    pub shape: Vec<usize>,
}

/// The arrangements that there are, one for each published form; `formats/` has a file for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arrangement {
    /// The bytes of the part, in a tensor of another element type or shape.
    Bytes,
    /// Blocks of a GGUF file.
    Gguf(BlockType),
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
pub(crate) fn differs(tensor: &str, location: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, "read weight", "the reference does not fit the stored tensor")
        .with_context("tensor", tensor)
        .with_context("path", location)
}
