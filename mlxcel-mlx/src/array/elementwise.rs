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

    /// The error function.
    pub(crate) fn erf(&self) -> Result<Self> {
        self.unary(UnaryCode::Erf, "erf")
    }

    /// `eˣ`
    pub(crate) fn exp(&self) -> Result<Self> {
        self.unary(UnaryCode::Exp, "exp")
    }

    /// `-x`
    pub(crate) fn negative(&self) -> Result<Self> {
        self.unary(UnaryCode::Negative, "negative")
    }

    /// `1 / (1 + e⁻ˣ)`
    pub(crate) fn sigmoid(&self) -> Result<Self> {
        self.unary(UnaryCode::Sigmoid, "sigmoid")
    }

    /// The square root.
    pub(crate) fn sqrt(&self) -> Result<Self> {
        self.unary(UnaryCode::Sqrt, "sqrt")
    }

    /// `x²`
    pub(crate) fn square(&self) -> Result<Self> {
        self.unary(UnaryCode::Square, "square")
    }

    /// The hyperbolic tangent.
    pub(crate) fn tanh(&self) -> Result<Self> {
        self.unary(UnaryCode::Tanh, "tanh")
    }

    /// `a + b`
    pub(crate) fn add(&self, other: &Self) -> Result<Self> {
        self.binary(BinaryCode::Add, other, "add")
    }

    /// `a + value`
    pub(crate) fn add_scalar(&self, value: f32) -> Result<Self> {
        self.binary_scalar(BinaryCode::Add, value, "add")
    }

    /// `a - b`
    pub(crate) fn subtract(&self, other: &Self) -> Result<Self> {
        self.binary(BinaryCode::Subtract, other, "subtract")
    }

    /// `a · b`
    pub(crate) fn multiply(&self, other: &Self) -> Result<Self> {
        self.binary(BinaryCode::Multiply, other, "multiply")
    }

    /// `a · value`
    pub(crate) fn multiply_scalar(&self, value: f32) -> Result<Self> {
        self.binary_scalar(BinaryCode::Multiply, value, "multiply")
    }

    /// `a / b`; integers become floats.
    pub(crate) fn divide(&self, other: &Self) -> Result<Self> {
        self.binary(BinaryCode::Divide, other, "divide")
    }

    /// The larger of both.
    pub(crate) fn maximum(&self, other: &Self) -> Result<Self> {
        self.binary(BinaryCode::Maximum, other, "maximum")
    }

    /// The smaller of both.
    pub(crate) fn minimum(&self, other: &Self) -> Result<Self> {
        self.binary(BinaryCode::Minimum, other, "minimum")
    }

    /// `ln(eᵃ + eᵇ)`, without overflow.
    pub(crate) fn logaddexp(&self, other: &Self) -> Result<Self> {
        self.binary(BinaryCode::LogAddExp, other, "logaddexp")
    }

    /// `a = b`, as booleans.
    pub(crate) fn equal(&self, other: &Self) -> Result<Self> {
        self.binary(BinaryCode::Equal, other, "compare")
    }

    /// `a < b`, as booleans.
    pub(crate) fn less(&self, other: &Self) -> Result<Self> {
        self.binary(BinaryCode::Less, other, "compare")
    }

    /// `a ≤ b`, as booleans.
    pub(crate) fn less_equal(&self, other: &Self) -> Result<Self> {
        self.binary(BinaryCode::LessEqual, other, "compare")
    }

    /// `a > b`, as booleans.
    pub(crate) fn greater(&self, other: &Self) -> Result<Self> {
        self.binary(BinaryCode::Greater, other, "compare")
    }

    /// `a ≥ b`, as booleans.
    pub(crate) fn greater_equal(&self, other: &Self) -> Result<Self> {
        self.binary(BinaryCode::GreaterEqual, other, "compare")
    }

    /// `a ∧ b`, as booleans.
    pub(crate) fn logical_and(&self, other: &Self) -> Result<Self> {
        self.binary(BinaryCode::LogicalAnd, other, "and")
    }

    /// `a ∨ b`, as booleans.
    pub(crate) fn logical_or(&self, other: &Self) -> Result<Self> {
        self.binary(BinaryCode::LogicalOr, other, "or")
    }

    /// The element of `then` where this array of booleans is true, otherwise that of `otherwise`.
    pub(crate) fn select(&self, then: &Self, otherwise: &Self) -> Result<Self> {
        Self::made(sys::select(self.tensor(), then.tensor(), otherwise.tensor()), "select")
    }
}
