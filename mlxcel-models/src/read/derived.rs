//! Rows of parts that files store in another arrangement.

use std::ops::Range;

use mlxcel_core::Result;

use super::formats::{awq, gguf, grid, integers};
use super::gather::misfit;
use crate::checkpoint::Checkpoint;
use crate::packing::{Arrangement, Derived};

impl Derived {
    /// Writes consecutive rows of the part, from the stored tensor called `tensor`, into `out`, which is as
    /// long as they are.
    pub(super) fn read(
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
            Arrangement::Integers => integers::read(checkpoint, tensor, rows, out),
            Arrangement::Bytes => {
                let (view, location) = checkpoint.located(tensor)?;
                let row = out.len().checked_div(rows.len()).unwrap_or_default();
                let stored = view.bytes.get(rows.start * row..rows.end * row);
                let Some(stored) = stored.filter(|stored| stored.len() == out.len()) else {
                    return Err(misfit(tensor, location));
                };
                out.copy_from_slice(stored);
                Ok(())
            }
        }
    }
}
