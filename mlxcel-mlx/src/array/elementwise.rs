//! Operations on each element.

use mlxcel_core::Result;

use super::Array;
use crate::ffi::sys::{self, BinaryCode, UnaryCode};

impl Array {
    fn unary(&self, code: UnaryCode, operation: &'static str) -> Result<Self> {
        Self::made(sys::unary(code, self.tensor()), operation)
    }

    fn binary(&self, code: BinaryCode, other: &Self, operation: &'static str) -> Result<Self> {
        Self::made(sys::binary(code, self.tensor(), other.tensor()), operation)
    }

    fn binary_scalar(&self, code: BinaryCode, value: f32, operation: &'static str) -> Result<Self> {
        self.binary(code, &Self::scalar(value, self.dtype()?)?, operation)
    }

    /// `a + value`
    pub(crate) fn add_scalar(&self, value: f32) -> Result<Self> {
        self.binary_scalar(BinaryCode::Add, value, "add")
    }

    /// `a · value`
    pub(crate) fn multiply_scalar(&self, value: f32) -> Result<Self> {
        self.binary_scalar(BinaryCode::Multiply, value, "multiply")
    }

    /// The element of `then` where this array of booleans is true, otherwise that of `otherwise`.
    pub(crate) fn select(&self, then: &Self, otherwise: &Self) -> Result<Self> {
        Self::made(sys::select(self.tensor(), then.tensor(), otherwise.tensor()), "select")
    }
}

macro_rules! unary_methods {
    ($($(#[$doc:meta])* $name:ident => $code:ident;)*) => {
        impl Array {$(
            $(#[$doc])*
            pub(crate) fn $name(&self) -> Result<Self> {
                self.unary(UnaryCode::$code, stringify!($name))
            }
        )*}
    };
}

unary_methods! {
    /// The error function.
    erf => Erf;
    /// `eˣ`
    exp => Exp;
    /// `-x`
    negative => Negative;
    /// `1 / (1 + e⁻ˣ)`
    sigmoid => Sigmoid;
    /// The square root.
    sqrt => Sqrt;
    /// `x²`
    square => Square;
    /// The hyperbolic tangent.
    tanh => Tanh;
}

/// Methods of two arrays, with what errors call them.
macro_rules! binary_methods {
    ($($(#[$doc:meta])* $name:ident => $code:ident, $operation:literal;)*) => {
        impl Array {$(
            $(#[$doc])*
            pub(crate) fn $name(&self, other: &Self) -> Result<Self> {
                self.binary(BinaryCode::$code, other, $operation)
            }
        )*}
    };
}

binary_methods! {
    /// `a + b`
    add => Add, "add";
    /// `a - b`
    subtract => Subtract, "subtract";
    /// `a · b`
    multiply => Multiply, "multiply";
    /// `a / b`; integers become floats.
    divide => Divide, "divide";
    /// The larger of both.
    maximum => Maximum, "maximum";
    /// The smaller of both.
    minimum => Minimum, "minimum";
    /// `ln(eᵃ + eᵇ)`, without overflow.
    logaddexp => LogAddExp, "logaddexp";
    /// `a = b`, as booleans.
    equal => Equal, "compare";
    /// `a < b`, as booleans.
    less => Less, "compare";
    /// `a ≤ b`, as booleans.
    less_equal => LessEqual, "compare";
    /// `a > b`, as booleans.
    greater => Greater, "compare";
    /// `a ≥ b`, as booleans.
    greater_equal => GreaterEqual, "compare";
    /// `a ∧ b`, as booleans.
    logical_and => LogicalAnd, "and";
    /// `a ∨ b`, as booleans.
    logical_or => LogicalOr, "or";
}
