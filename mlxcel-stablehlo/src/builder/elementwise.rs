//! Elementwise operations. Operands are never broadcast implicitly: see
//! [`broadcast_like`](Builder::broadcast_like).

use super::{Builder, Value};
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
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {
        /// Operations of two operands of the same type; each answers an error where the types differ or the operation does
        /// not take their elements.
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

binary_methods! {
    /// `lhs + rhs`; integers wrap.
    add => Add;
    /// `lhs - rhs`; integers wrap.
    subtract => Subtract;
    /// `lhs × rhs`; integers wrap.
    multiply => Multiply;
    /// `lhs ÷ rhs`; integers truncate towards zero.
    divide => Divide;
    /// The maximum; NaN if either operand is NaN.
    maximum => Maximum;
    /// The minimum; NaN if either operand is NaN.
    minimum => Minimum;
    /// `lhs` to the power of `rhs`.
    power => Power;
    /// The remainder of `lhs ÷ rhs`, with the sign of `lhs`.
    remainder => Remainder;
    /// The angle of the point (`rhs`, `lhs`), in radians; floats.
    atan2 => Atan2;
    /// Logical or bitwise and; integers or booleans.
    and => And;
    /// Logical or bitwise or; integers or booleans.
    or => Or;
    /// Logical or bitwise exclusive or; integers or booleans.
    xor => Xor;
    /// `lhs` shifted left by `rhs` bits; zero for as many bits as the type has or more. Integers.
    shift_left => ShiftLeft;
    /// `lhs` shifted right by `rhs` bits, filled with its sign bit. Integers.
    shift_right_arithmetic => ShiftRightArithmetic;
    /// `lhs` shifted right by `rhs` bits, filled with zeros. Integers.
    shift_right_logical => ShiftRightLogical;
}

macro_rules! unary_methods {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {
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

unary_methods! {
    /// The magnitude; floats or signed integers.
    abs => Abs;
    /// The negation; integers wrap.
    negate => Negate;
    /// -1, 0 or 1; floats keep the sign of zero, and NaN. Floats or signed integers.
    sign => Sign;
    /// Logical or bitwise not; integers or booleans.
    not => Not;
    /// e to the power of the operand; floats.
    exponential => Exponential;
    /// e to the power of the operand, less one, exact near zero; floats.
    exponential_minus_one => ExponentialMinusOne;
    /// The natural logarithm; floats.
    log => Log;
    /// The natural logarithm of one more than the operand, exact near zero; floats.
    log_plus_one => LogPlusOne;
    /// 1 ÷ (1 + e to the power of minus the operand); floats.
    logistic => Logistic;
    /// The hyperbolic tangent; floats.
    tanh => Tanh;
    /// The sine of radians; floats.
    sine => Sine;
    /// The cosine of radians; floats.
    cosine => Cosine;
    /// The square root; floats.
    sqrt => Sqrt;
    /// One over the square root; floats.
    rsqrt => Rsqrt;
    /// The cube root; floats.
    cbrt => Cbrt;
    /// The largest integer that is not larger; floats.
    floor => Floor;
    /// The smallest integer that is not smaller; floats.
    ceil => Ceil;
    /// The nearest integer, ties to even; floats.
    round_nearest_even => RoundNearestEven;
    /// The nearest integer, ties away from zero; floats.
    round_nearest_afz => RoundNearestAfz;
    /// The number of zero bits above the highest set one; integers.
    count_leading_zeros => CountLeadingZeros;
    /// The number of set bits; integers.
    popcnt => Popcnt;
}
