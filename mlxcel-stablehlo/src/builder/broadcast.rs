//! Explicit broadcasting; operations never broadcast implicitly.

use super::{Builder, Value};
use crate::error::{Error, ErrorKind, Result};
use crate::module::GatherDimensions;

impl<'f> Builder<'f> {
    /// Broadcasts a scalar to `shape`.
    ///
    /// # Errors
    /// An operand that is not a scalar; a shape too large for memory.
    pub fn broadcast_scalar(&mut self, scalar: Value<'f>, shape: &[usize]) -> Result<Value<'f>> {
        self.broadcast_in_dim(scalar, shape, &[])
    }

    /// Broadcasts `operand` to the shape of `like`, aligning trailing dimensions: `[H]` and `[1, H]` to `[N,
    /// H]`, a scalar to anything.
    ///
    /// # Errors
    /// A rank above that of `like`; a size that is neither 1 nor that of `like`.
    pub fn broadcast_like(&mut self, operand: Value<'f>, like: Value<'f>) -> Result<Value<'f>> {
        let shape = self.shape(like);
        let ty = self.ty(operand);
        if ty.shape == shape {
            return Ok(operand);
        }
        let rank = ty.rank();
        let Some(offset) = shape.len().checked_sub(rank) else {
            let operands =
                vec![("operand".to_owned(), ty.clone()), ("like".to_owned(), self.ty(like).clone())];
            let error = Error::new(ErrorKind::Shape, "broadcast_like", "operand has a higher rank than like");
            return Err(error.with_operands(operands));
        };
        let dimensions: Vec<usize> = (offset..shape.len()).collect();
        self.broadcast_in_dim(operand, &shape, &dimensions)
    }

    /// Broadcasts `operand`, which is `shape` without `dimensions`, along these dimensions: the inverse of a
    /// reduction's change of shape.
    ///
    /// # Errors
    /// An operand that is not `shape` without `dimensions`.
    pub fn expand(&mut self, operand: Value<'f>, shape: &[usize], dimensions: &[usize]) -> Result<Value<'f>> {
        let kept: Vec<usize> = (0..shape.len()).filter(|dimension| !dimensions.contains(dimension)).collect();
        self.broadcast_in_dim(operand, shape, &kept)
    }

    /// Rows of `table: [V, H]` at integer `indices` of any shape: `[..indices, H]`, an embedding lookup.
    /// Indices are clamped to the table.
    ///
    /// # Errors
    /// A table that is not two-dimensional or has no rows; indices that are not integers.
    pub fn take(&mut self, table: Value<'f>, indices: Value<'f>) -> Result<Value<'f>> {
        let (ty, rank) = (self.ty(table).clone(), self.ty(indices).rank());
        let [_, width] = ty.shape[..] else {
            let operands = vec![("table".to_owned(), ty), ("indices".to_owned(), self.ty(indices).clone())];
            let error =
                Error::new(ErrorKind::Shape, "gather", "table must have two dimensions, [rows, width]");
            return Err(error.with_operands(operands));
        };
        let dimensions = GatherDimensions {
            offset_dims: vec![rank],
            collapsed_slice_dims: vec![0],
            start_index_map: vec![0],
            index_vector_dim: rank,
            slice_sizes: vec![1, width],
        };
        self.gather(table, indices, dimensions)
    }
}
