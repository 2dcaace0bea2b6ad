//! Elementwise operations. Operands are never broadcast implicitly: see
//! [`broadcast_like`](Builder::broadcast_like).

use super::{Builder, Value};
use crate::elementwise::{binary_ops, unary_ops};
use crate::error::Result;
use crate::infer;
use crate::module::{BinaryOp, Comparison, OpKind, UnaryOp};

impl<'f> Builder<'f> {
    /// An elementwise operation of one operand.
    ///
    /// # Errors
    /// An element type that `op` does not support.
    pub fn unary(&mut self, op: UnaryOp, operand: Value<'f>) -> Result<Value<'f>> {
        let ty = infer::unary(op, self.operand(op.name(), operand)?)?;
        Ok(self.push_one(OpKind::Unary(op), &[operand], ty))
    }

    /// An elementwise operation of two operands of the same type.
    ///
    /// # Errors
    /// Operands of different types; an element type that `op` does not support.
    pub fn binary(&mut self, op: BinaryOp, lhs: Value<'f>, rhs: Value<'f>) -> Result<Value<'f>> {
        let ty = infer::binary(op, self.operand(op.name(), lhs)?, self.operand(op.name(), rhs)?)?;
        Ok(self.push_one(OpKind::Binary(op), &[lhs, rhs], ty))
    }

    /// Compares two operands of the same type elementwise; the result is boolean.
    ///
    /// # Errors
    /// Operands of different types.
    pub fn compare(&mut self, lhs: Value<'f>, rhs: Value<'f>, comparison: Comparison) -> Result<Value<'f>> {
        let ty = infer::compare(self.operand("compare", lhs)?, self.operand("compare", rhs)?)?;
        Ok(self.push_one(OpKind::Compare(comparison), &[lhs, rhs], ty))
    }

    /// `on_true` where `condition` holds, `on_false` elsewhere; the condition has their shape or is a scalar.
    ///
    /// # Errors
    /// Choices of different types; a condition that is not boolean or has another shape.
    pub fn select(
        &mut self,
        condition: Value<'f>,
        on_true: Value<'f>,
        on_false: Value<'f>,
    ) -> Result<Value<'f>> {
        const OP: &str = "select";
        let types = (self.operand(OP, condition)?, self.operand(OP, on_true)?, self.operand(OP, on_false)?);
        let ty = infer::select(types.0, types.1, types.2)?;
        Ok(self.push_one(OpKind::Select, &[condition, on_true, on_false], ty))
    }

    /// `operand` between `minimum` and `maximum`, which have its shape or are scalars.
    ///
    /// # Errors
    /// Bounds of another element type or shape; booleans.
    pub fn clamp(&mut self, minimum: Value<'f>, operand: Value<'f>, maximum: Value<'f>) -> Result<Value<'f>> {
        const OP: &str = "clamp";
        let types = (self.operand(OP, minimum)?, self.operand(OP, operand)?, self.operand(OP, maximum)?);
        let ty = infer::clamp(types.0, types.1, types.2)?;
        Ok(self.push_one(OpKind::Clamp, &[minimum, operand, maximum], ty))
    }
}

macro_rules! binary_methods {
    ([] $($(#[$doc:meta])* $name:ident => $op:ident;)*) => {
        /// Operations of two operands of the same type.
        impl<'f> Builder<'f> {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// Operands of different types, or an unsupported element type.
            pub fn $name(&mut self, lhs: Value<'f>, rhs: Value<'f>) -> Result<Value<'f>> {
                self.binary(BinaryOp::$op, lhs, rhs)
            }
        )*}
    };
}

binary_ops! { binary_methods }

macro_rules! unary_methods {
    ([] $($(#[$doc:meta])* $name:ident => $op:ident;)*) => {
        /// Operations of one operand.
        impl<'f> Builder<'f> {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// An unsupported element type.
            pub fn $name(&mut self, operand: Value<'f>) -> Result<Value<'f>> {
                self.unary(UnaryOp::$op, operand)
            }
        )*}
    };
}

unary_ops! { unary_methods }
