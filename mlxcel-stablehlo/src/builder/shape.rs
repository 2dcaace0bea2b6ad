//! Operations that move elements, and changes of element type.

use super::{Builder, Value};
use crate::error::Result;
use crate::infer;
use crate::module::OpKind;
use crate::types::ElementType;

impl<'f> Builder<'f> {
    /// The same elements in row-major order in `shape`. A reshape to the same shape is the operand itself.
    ///
    /// # Errors
    /// A shape of another number of elements.
    pub fn reshape(&mut self, operand: Value<'f>, shape: &[usize]) -> Result<Value<'f>> {
        let from = self.operand("reshape", operand)?;
        let ty = infer::reshape(from, shape)?;
        if *from == ty { Ok(operand) } else { Ok(self.push_one(OpKind::Reshape, &[operand], ty)) }
    }

    /// Repeats elements to `shape`: operand dimension `i` becomes result dimension `dimensions[i]`, and must have size 1
    /// or that of the result.
    ///
    /// # Errors
    /// Dimension numbers that are not one distinct result dimension for each operand dimension; sizes that do not fit.
    pub fn broadcast_in_dim(
        &mut self,
        operand: Value<'f>,
        shape: &[usize],
        dimensions: &[usize],
    ) -> Result<Value<'f>> {
        let ty = infer::broadcast_in_dim(self.operand("broadcast_in_dim", operand)?, shape, dimensions)?;
        let mut order: Vec<usize> = (0..dimensions.len()).collect();
        order.sort_unstable_by_key(|&i| dimensions[i]);
        // Some versions of StableHLO's canonicalizer permute the wrong way round when dimensions change their order and
        // nothing is repeated, so that is said by a transpose.
        let operand = if order.is_sorted() { operand } else { self.transpose(operand, &order)? };
        let dimensions = order.iter().map(|&i| dimensions[i]).collect();
        Ok(self.push_one(OpKind::BroadcastInDim { dimensions }, &[operand], ty))
    }

    /// Result dimension `i` is operand dimension `permutation[i]`.
    ///
    /// # Errors
    /// A `permutation` that is none of the operand's dimensions.
    pub fn transpose(&mut self, operand: Value<'f>, permutation: &[usize]) -> Result<Value<'f>> {
        let ty = infer::transpose(self.operand("transpose", operand)?, permutation)?;
        Ok(self.push_one(OpKind::Transpose { permutation: permutation.to_vec() }, &[operand], ty))
    }

    /// The same numbers as `element`s: floats are rounded to nearest even, or towards zero to integers. A conversion to
    /// the operand's own type is the operand itself.
    ///
    /// # Errors
    /// A result beyond memory.
    pub fn convert(&mut self, operand: Value<'f>, element: ElementType) -> Result<Value<'f>> {
        let from = self.operand("convert", operand)?;
        let ty = infer::convert(from, element)?;
        if *from == ty { Ok(operand) } else { Ok(self.push_one(OpKind::Convert, &[operand], ty)) }
    }

    /// The same bits as `element`s. A wider type splits into a new last dimension, lowest bits first; a narrower one is
    /// joined from the last dimension, which goes.
    ///
    /// # Errors
    /// Truth values; a last dimension that is not as long as one `element` has parts.
    pub fn bitcast_convert(&mut self, operand: Value<'f>, element: ElementType) -> Result<Value<'f>> {
        let from = self.operand("bitcast_convert", operand)?;
        let ty = infer::bitcast_convert(from, element)?;
        if *from == ty { Ok(operand) } else { Ok(self.push_one(OpKind::BitcastConvert, &[operand], ty)) }
    }

    /// All operands one after another along `dimension`.
    ///
    /// # Errors
    /// No operand; other element types; shapes that differ elsewhere than in `dimension`.
    pub fn concatenate(&mut self, operands: &[Value<'f>], dimension: usize) -> Result<Value<'f>> {
        let ty = infer::concatenate(&self.operands("concatenate", operands)?, dimension)?;
        Ok(self.push_one(OpKind::Concatenate { dimension }, operands, ty))
    }

    /// Adds the scalar `value`: `low` times in front of, `high` times behind, `interior` times between the elements of
    /// each dimension. Negative `low` and `high` remove elements.
    ///
    /// # Errors
    /// Lists that are not one entry a dimension; a `value` that is no scalar of the operand's type; a result of negative
    /// or unaddressable size.
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
