//! References from roles in a network to tensors of a checkpoint.

use std::fmt;

use crate::element::ElementType;

/// A weight: a tensor of the checkpoint, or some rows of one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct WeightRef {
    /// The tensor's name in the checkpoint.
    pub tensor: String,
    /// The type of its elements.
    pub element: ElementType,
    /// The shape of this weight; of a slice, that of the slice.
    pub shape: Vec<usize>,
    /// The rows that are meant where the tensor holds several weights fused into one; `None` for all of it.
    pub slice: Option<RowSlice>,
}

/// Consecutive rows, that is indices of the outermost dimension, of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowSlice {
    /// The first row.
    pub start: usize,
    /// How many rows.
    pub rows: usize,
}

impl WeightRef {
    /// A reference to a whole tensor.
    pub fn new(tensor: impl Into<String>, element: ElementType, shape: impl Into<Vec<usize>>) -> Self {
        Self { tensor: tensor.into(), element, shape: shape.into(), slice: None }
    }

    /// The same tensor, reduced to consecutive rows of it.
    #[must_use]
    pub fn rows(mut self, slice: RowSlice) -> Self {
        if let Some(rows) = self.shape.first_mut() {
            *rows = slice.rows;
        }
        // Rows of rows count from the first of the slice that is there already.
        let start = slice.start.saturating_add(self.slice.map_or(0, |slice| slice.start));
        self.slice = Some(RowSlice { start, rows: slice.rows });
        self
    }

    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().fold(1, |product, &size| product.saturating_mul(size))
    }

    /// The number of bytes as stored.
    pub fn byte_len(&self) -> usize {
        self.elements().saturating_mul(self.element.bits()).div_ceil(8)
    }
}

/// Prints as `name[rows] TYPE [sizes]`.
impl fmt::Display for WeightRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.tensor)?;
        if let Some(RowSlice { start, rows }) = self.slice {
            write!(f, "[{start}..{}]", start.saturating_add(rows))?;
        }
        write!(f, " {} {:?}", self.element, self.shape)
    }
}
