//! Reductions and products.

use super::{Builder, Value};
use crate::error::Result;
use crate::infer;
use crate::module::{DotDimensions, OpKind, Reduction};
use crate::types::ElementType;

impl<'f> Builder<'f> {
    /// Reduces `dimensions` (ascending) and removes them. An empty dimension reduces to the neutral element.
    ///
    /// # Errors
    /// Dimensions that the operand does not have or that do not ascend; an element type that the reduction
    /// does not support.
    pub fn reduce(
        &mut self,
        operand: Value<'f>,
        reduction: Reduction,
        dimensions: &[usize],
    ) -> Result<Value<'f>> {
        let ty = infer::reduce(self.operand("reduce", operand)?, reduction, dimensions)?;
        let kind = OpKind::Reduce { reduction, dimensions: dimensions.to_vec() };
        Ok(self.push_one(kind, &[operand], ty))
    }

    /// The sum over `dimensions`, which are removed.
    ///
    /// # Errors
    /// The errors of [`reduce`](Self::reduce).
    pub fn sum(&mut self, operand: Value<'f>, dimensions: &[usize]) -> Result<Value<'f>> {
        self.reduce(operand, Reduction::Sum, dimensions)
    }

    /// The maximum over `dimensions`, which are removed.
    ///
    /// # Errors
    /// The errors of [`reduce`](Self::reduce).
    pub fn max(&mut self, operand: Value<'f>, dimensions: &[usize]) -> Result<Value<'f>> {
        self.reduce(operand, Reduction::Max, dimensions)
    }

    /// The maximum of `values` along `dimension`, which is removed, and the corresponding element of
    /// `indices`. Ties go to the lowest index, and a number wins over NaN.
    ///
    /// # Errors
    /// Operands of different shapes; an invalid or empty `dimension`; indices that are not integers.
    pub fn reduce_argmax(
        &mut self,
        values: Value<'f>,
        indices: Value<'f>,
        dimension: usize,
    ) -> Result<(Value<'f>, Value<'f>)> {
        const OP: &str = "reduce_argmax";
        let (value, index) =
            infer::reduce_argmax(self.operand(OP, values)?, self.operand(OP, indices)?, dimension)?;
        let kind = OpKind::ReduceArgMax { dimension };
        let results = self.push(kind, &[values, indices], vec![value, index], Vec::new());
        Ok((results[0], results[1]))
    }

    /// The product of two operands of one element type, summed in `element`, which may be wider. The result
    /// has the batch dimensions, then the remaining dimensions of `lhs`, then of `rhs`.
    ///
    /// # Errors
    /// Operands of different element types, paired dimensions of different sizes, a dimension named twice, or
    /// an `element` that is narrower than the operands' or of another kind.
    pub fn dot_general(
        &mut self,
        lhs: Value<'f>,
        rhs: Value<'f>,
        dimensions: DotDimensions,
        element: ElementType,
    ) -> Result<Value<'f>> {
        const OP: &str = "dot_general";
        let ty = infer::dot_general(self.operand(OP, lhs)?, self.operand(OP, rhs)?, &dimensions, element)?;
        Ok(self.push_one(OpKind::DotGeneral { dimensions }, &[lhs, rhs], ty))
    }
}
