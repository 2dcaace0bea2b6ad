//! Slices, gather and scatter.

use super::{Builder, Value};
use crate::error::Result;
use crate::infer;
use crate::module::{GatherDimensions, OpKind, ScatterDimensions, ScatterUpdate};

impl<'f> Builder<'f> {
    /// The elements from `start` to `limit` (exclusive) in each dimension.
    ///
    /// # Errors
    /// Bounds that are not one per dimension, out of range, or not in order.
    pub fn slice(&mut self, operand: Value<'f>, start: &[usize], limit: &[usize]) -> Result<Value<'f>> {
        let stride = vec![1; start.len()];
        self.slice_strided(operand, start, limit, &stride)
    }

    /// Every `stride`th element from `start` to `limit` (exclusive) in each dimension.
    ///
    /// # Errors
    /// As for [`slice`](Self::slice); a stride of zero.
    pub fn slice_strided(
        &mut self,
        operand: Value<'f>,
        start: &[usize],
        limit: &[usize],
        stride: &[usize],
    ) -> Result<Value<'f>> {
        let ty = infer::slice(self.operand("slice", operand)?, start, limit, stride)?;
        let kind = OpKind::Slice { start: start.to_vec(), limit: limit.to_vec(), stride: stride.to_vec() };
        Ok(self.push_one(kind, &[operand], ty))
    }

    /// A slice of `sizes` at the scalar integers `starts`, one per dimension. Starts are clamped so that the
    /// slice fits.
    ///
    /// # Errors
    /// Starts or sizes that are not one per dimension; sizes larger than the operand; starts that are not
    /// scalar integers of one type.
    pub fn dynamic_slice(
        &mut self,
        operand: Value<'f>,
        starts: &[Value<'f>],
        sizes: &[usize],
    ) -> Result<Value<'f>> {
        const OP: &str = "dynamic_slice";
        let ty = infer::dynamic_slice(self.operand(OP, operand)?, &self.operands(OP, starts)?, sizes)?;
        let operands = [&[operand], starts].concat();
        Ok(self.push_one(OpKind::DynamicSlice { sizes: sizes.to_vec() }, &operands, ty))
    }

    /// The operand with `update` written at the scalar integers `starts`, one per dimension. Starts are
    /// clamped so that the update fits.
    ///
    /// # Errors
    /// An update of another rank or element type, or larger than the operand; starts as in
    /// [`dynamic_slice`](Self::dynamic_slice).
    pub fn dynamic_update_slice(
        &mut self,
        operand: Value<'f>,
        update: Value<'f>,
        starts: &[Value<'f>],
    ) -> Result<Value<'f>> {
        const OP: &str = "dynamic_update_slice";
        let (into, part) = (self.operand(OP, operand)?, self.operand(OP, update)?);
        let ty = infer::dynamic_update_slice(into, part, &self.operands(OP, starts)?)?;
        let operands = [&[operand, update], starts].concat();
        Ok(self.push_one(OpKind::DynamicUpdateSlice, &operands, ty))
    }

    /// Slices of `operand` at run-time `indices`, which are clamped so that slices fit.
    ///
    /// # Errors
    /// Dimension numbers that do not fit the operands as the StableHLO specification says.
    pub fn gather(
        &mut self,
        operand: Value<'f>,
        indices: Value<'f>,
        dimensions: GatherDimensions,
    ) -> Result<Value<'f>> {
        let ty =
            infer::gather(self.operand("gather", operand)?, self.operand("gather", indices)?, &dimensions)?;
        Ok(self.push_one(OpKind::Gather { dimensions }, &[operand, indices], ty))
    }

    /// `operand` with windows of `updates` combined in at run-time `indices`; a window that does not fit is
    /// skipped. `unique_indices` promises that windows do not overlap.
    ///
    /// # Errors
    /// Dimension numbers that do not fit the operands as the StableHLO specification says; adding booleans.
    pub fn scatter(
        &mut self,
        operand: Value<'f>,
        indices: Value<'f>,
        updates: Value<'f>,
        dimensions: ScatterDimensions,
        update: ScatterUpdate,
        unique_indices: bool,
    ) -> Result<Value<'f>> {
        const OP: &str = "scatter";
        let types = (self.operand(OP, operand)?, self.operand(OP, indices)?, self.operand(OP, updates)?);
        let ty = infer::scatter(types.0, types.1, types.2, &dimensions, update)?;
        let kind = OpKind::Scatter { dimensions, update, unique_indices };
        Ok(self.push_one(kind, &[operand, indices, updates], ty))
    }
}
