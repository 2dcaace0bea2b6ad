//! Reading weights: from the tensors of a checkpoint to the bytes of a [`WeightRef`], in whatever form files
//! store them.
//!
//! `formats` has a file for each published form of packed weights: how a module in this form is described,
//! and how rows of its parts are converted to the description of [`packing`](crate::packing).

mod derived;
pub(crate) mod formats;
mod gather;
mod packed;
mod rows;

use std::ops::Range;

use mlxcel_core::Result;

pub use crate::float::Float;
pub use formats::{Mode, Scheme};
pub use gather::WeightView;
pub use packed::{PackedRows, Scratch};
pub use rows::WeightRows;

use crate::checkpoint::Checkpoint;
use crate::decoder::WeightRef;
use crate::element::ElementType;

impl Checkpoint {
    /// The bytes of a weight of this checkpoint's [`Decoder`](crate::Decoder): borrowed from the mapped files
    /// if they are contiguous there, else copied.
    ///
    /// For a packed weight these are the codes, in its [`stored_shape`](WeightRef::stored_shape). Its other
    /// parts are separate weights.
    ///
    /// # Errors
    ///
    /// [`NotFound`](mlxcel_core::ErrorKind::NotFound) if the tensor does not exist,
    /// [`InvalidInput`](mlxcel_core::ErrorKind::InvalidInput) if it does not match the reference, which
    /// then belongs to another checkpoint.
    pub fn weight(&self, weight: &WeightRef) -> Result<WeightView<'_>> {
        gather::view(self, weight)
    }

    /// The bytes of a weight in the mapped files: one part, or one for each tensor that it is
    /// [stacked](WeightRef::stack) from. `None` if they have to be gathered, as [`weight`](Self::weight)
    /// does.
    ///
    /// # Errors
    ///
    /// The errors of [`weight`](Self::weight).
    pub fn mapped_weight(&self, weight: &WeightRef) -> Result<Option<Vec<&[u8]>>> {
        gather::mapped(self, weight)
    }

    /// Copies consecutive rows of a weight into `out`, to load a weight in pieces. All dimensions but the
    /// innermost count as rows.
    ///
    /// # Errors
    ///
    /// The errors of [`weight`](Self::weight); [`InvalidInput`](mlxcel_core::ErrorKind::InvalidInput) for
    /// rows out of range, or an `out` of another length.
    pub fn weight_rows(&self, weight: &WeightRef, rows: Range<usize>, out: &mut [u8]) -> Result<()> {
        gather::rows(self, weight, rows, out)
    }

    /// The values of a weight, packed or floating-point, converted to F32, F16 or BF16, row-major.
    ///
    /// # Errors
    ///
    /// The errors of [`weight`](Self::weight); [`Unsupported`](mlxcel_core::ErrorKind::Unsupported) for other
    /// types; [`ResourceExhausted`](mlxcel_core::ErrorKind::ResourceExhausted).
    pub fn expanded_weight(&self, weight: &WeightRef, element: ElementType) -> Result<Vec<u8>> {
        rows::values(self, weight, element)
    }
}
