//! Linear layers.

use super::{Builder, Value};
use crate::error::{Error, ErrorKind, Result};
use crate::module::DotDimensions;
use crate::types::ElementType;

impl<'f> Builder<'f> {
    /// A linear layer: `x: [.., K]` times the transpose of `weight: [N, K]` (as stored in checkpoints), plus
    /// `bias: [N]`, as `out: [.., N]`.
    ///
    /// Three operations: a product that sums in f32 (two operands of the same half-precision type are
    /// multiplied directly, others after conversion to f32), the addition of the bias in f32, and one
    /// rounding to `out`.
    ///
    /// # Errors
    /// Operands that are not floating-point; a weight that is not two-dimensional or whose second dimension
    /// is not the last of `x`; a bias that does not match the weight's first dimension; an `out` that is
    /// not floating-point.
    pub fn linear(
        &mut self,
        x: Value<'f>,
        weight: Value<'f>,
        bias: Option<Value<'f>>,
        out: ElementType,
    ) -> Result<Value<'f>> {
        self.check_linear(x, weight, bias, out)?;
        let (mut x, mut weight) = (x, weight);
        if self.ty(x).element != self.ty(weight).element {
            x = self.convert(x, ElementType::F32)?;
            weight = self.convert(weight, ElementType::F32)?;
        }
        let dimensions = DotDimensions {
            lhs_contracting: vec![self.ty(x).rank() - 1],
            rhs_contracting: vec![1],
            ..DotDimensions::default()
        };
        let mut sum = self.dot_general(x, weight, dimensions, ElementType::F32)?;
        if let Some(bias) = bias {
            let bias = self.convert(bias, ElementType::F32)?;
            let bias = self.broadcast_like(bias, sum)?;
            sum = self.add(sum, bias)?;
        }
        self.convert(sum, out)
    }

    fn check_linear(
        &self,
        x: Value<'f>,
        weight: Value<'f>,
        bias: Option<Value<'f>>,
        out: ElementType,
    ) -> Result<()> {
        let named = [("x", Some(x)), ("weight", Some(weight)), ("bias", bias)];
        let operands: Vec<_> = named
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), self.ty(value?).clone())))
            .collect();
        let error =
            |kind, detail: &str| Err(Error::new(kind, "linear", detail).with_operands(operands.clone()));
        if operands.iter().any(|(_, ty)| !ty.element.is_float()) || !out.is_float() {
            let detail = format!("x, weight, bias and the result ({out}) must be of floats");
            return error(ErrorKind::Element, &detail);
        }
        let (x, weight) = (&self.ty(x).shape, &self.ty(weight).shape);
        if weight.len() != 2 || x.last() != weight.last() {
            return error(ErrorKind::Shape, "weight must be [N, K] for x of [.., K]");
        }
        if bias.is_some_and(|bias| self.ty(bias).shape != weight[..1]) {
            return error(ErrorKind::Shape, "bias must be [N] for a weight of [N, K]");
        }
        Ok(())
    }
}
