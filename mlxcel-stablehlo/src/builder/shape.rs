//! Reshape, broadcast, transpose, concatenate, pad, and conversions of element types.

use super::{Builder, Value};
use crate::error::Result;
use crate::infer;
use crate::module::OpKind;
use crate::types::ElementType;

impl<'f> Builder<'f> {
    /// The same elements in row-major order in `shape`. Returns the operand itself if the shape does not
    /// change.
    ///
    /// # Errors
    /// A shape with a different number of elements.
    pub fn reshape(&mut self, operand: Value<'f>, shape: &[usize]) -> Result<Value<'f>> {
        let from = self.operand("reshape", operand)?;
        let ty = infer::reshape(from, shape)?;
        if *from == ty { Ok(operand) } else { Ok(self.push_one(OpKind::Reshape, &[operand], ty)) }
    }

    /// Repeats elements to `shape`: operand dimension `i` becomes result dimension `dimensions[i]`, and must
    /// have size 1 or the result's size.
    ///
    /// # Errors
    /// Dimension numbers that are not one distinct result dimension per operand dimension; sizes that do not
    /// match.
    pub fn broadcast_in_dim(
        &mut self,
        operand: Value<'f>,
        shape: &[usize],
        dimensions: &[usize],
    ) -> Result<Value<'f>> {
        let ty = infer::broadcast_in_dim(self.operand("broadcast_in_dim", operand)?, shape, dimensions)?;
        let mut order: Vec<usize> = (0..dimensions.len()).collect();
        order.sort_unstable_by_key(|&i| dimensions[i]);
        // Some versions of StableHLO's canonicalizer permute the wrong way round when dimensions change their
        // order and nothing is repeated, so that is said by a transpose.
        let operand = if order.is_sorted() { operand } else { self.transpose(operand, &order)? };
        let dimensions = order.iter().map(|&i| dimensions[i]).collect();
        Ok(self.push_one(OpKind::BroadcastInDim { dimensions }, &[operand], ty))
    }

    /// Result dimension `i` is operand dimension `permutation[i]`.
    ///
    /// # Errors
    /// A `permutation` that is not a permutation of the operand's dimensions.
    pub fn transpose(&mut self, operand: Value<'f>, permutation: &[usize]) -> Result<Value<'f>> {
        let ty = infer::transpose(self.operand("transpose", operand)?, permutation)?;
        Ok(self.push_one(OpKind::Transpose { permutation: permutation.to_vec() }, &[operand], ty))
    }

    /// Converts to `element`: floats round to nearest even, and towards zero when they become integers.
    /// Returns the operand itself if the type does not change.
    ///
    /// # Errors
    /// A result too large for memory.
    pub fn convert(&mut self, operand: Value<'f>, element: ElementType) -> Result<Value<'f>> {
        let from = self.operand("convert", operand)?;
        let ty = infer::convert(from, element)?;
        if *from == ty { Ok(operand) } else { Ok(self.push_one(OpKind::Convert, &[operand], ty)) }
    }

    /// Reinterprets the bits as `element`. A narrower `element` adds a last dimension over the parts, lowest
    /// bits first; a wider one consumes the last dimension.
    ///
    /// # Errors
    /// Booleans; a last dimension that is not the number of parts of one `element`.
    pub fn bitcast_convert(&mut self, operand: Value<'f>, element: ElementType) -> Result<Value<'f>> {
        let from = self.operand("bitcast_convert", operand)?;
        let ty = infer::bitcast_convert(from, element)?;
        if *from == ty { Ok(operand) } else { Ok(self.push_one(OpKind::BitcastConvert, &[operand], ty)) }
    }

    /// Concatenates the operands along `dimension`.
    ///
    /// # Errors
    /// No operands; different element types; shapes that differ in another dimension.
    pub fn concatenate(&mut self, operands: &[Value<'f>], dimension: usize) -> Result<Value<'f>> {
        let ty = infer::concatenate(&self.operands("concatenate", operands)?, dimension)?;
        Ok(self.push_one(OpKind::Concatenate { dimension }, operands, ty))
    }

    /// Pads each dimension with the scalar `value`: `low` elements before, `high` after, `interior` between
    /// elements. Negative `low` and `high` remove elements.
    ///
    /// # Errors
    /// Lists that are not one entry per dimension; a `value` that is not a scalar of the operand's type; a
    /// negative size, or one too large for memory.
    pub fn pad(
        &mut self,
        operand: Value<'f>,
        value: Value<'f>,
        low: &[i64],
        high: &[i64],
        interior: &[usize],
    ) -> Result<Value<'f>> {
        let ty = infer::pad(self.operand("pad", operand)?, self.operand("pad", value)?, low, high, interior)?;
        let kind = OpKind::Pad { low: low.to_vec(), high: high.to_vec(), interior: interior.to_vec() };
        Ok(self.push_one(kind, &[operand, value], ty))
    }
}
