//! Constants.

use super::{Builder, Value};
use crate::error::{Error, ErrorKind, Result};
use crate::infer;
use crate::literal::{Element, Literal};
use crate::module::OpKind;
use crate::types::{ElementType, TensorType};

impl<'f> Builder<'f> {
    /// A constant tensor.
    ///
    /// # Errors
    /// Currently none; the signature is that of all operations.
    pub fn constant(&mut self, literal: Literal) -> Result<Value<'f>> {
        let ty = infer::sized("constant", literal.ty().clone())?;
        Ok(self.push_one(OpKind::Constant(literal), &[], ty))
    }

    /// A scalar constant.
    ///
    /// # Errors
    /// Currently none, as for [`constant`](Self::constant).
    pub fn scalar<T: Element>(&mut self, value: T) -> Result<Value<'f>> {
        self.constant(Literal::scalar(value))
    }

    /// A tensor of `shape` with all elements equal to `value`, rounded if `element` is a floating-point type.
    ///
    /// # Errors
    /// A `value` that an integer type cannot represent; a shape too large for memory.
    pub fn splat(&mut self, element: ElementType, value: f64, shape: &[usize]) -> Result<Value<'f>> {
        infer::sized("constant", TensorType::new(element, shape))?;
        let literal = Literal::scalar_from_f64(element, value).ok_or_else(|| {
            Error::new(ErrorKind::Attribute, "constant", format!("{value} is not a value of {element}"))
        })?;
        let scalar = self.constant(literal)?;
        if shape.is_empty() { Ok(scalar) } else { self.broadcast_scalar(scalar, shape) }
    }

    /// A tensor of type `ty` that counts up from zero along `dimension`.
    ///
    /// # Errors
    /// A dimension that `ty` does not have; booleans; a type too large for memory.
    pub fn iota(&mut self, ty: TensorType, dimension: usize) -> Result<Value<'f>> {
        let ty = infer::iota(ty, dimension)?;
        Ok(self.push_one(OpKind::Iota { dimension }, &[], ty))
    }
}
