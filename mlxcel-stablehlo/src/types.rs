//! Element types, shapes and tensor types.

use std::fmt;

/// The type of one element of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ElementType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16: the upper half of a binary32.
    BF16,
    /// Signed 64-bit integer.
    I64,
    /// Signed 32-bit integer.
    I32,
    /// Signed 8-bit integer.
    I8,
    /// Signed 4-bit integer, two to a byte with the first in the low bits.
    I4,
    /// Boolean.
    I1,
    /// Unsigned 32-bit integer.
    U32,
    /// Unsigned 8-bit integer.
    U8,
    /// Unsigned 4-bit integer, two to a byte with the first in the low bits.
    U4,
}

impl ElementType {
    /// Every element type.
    pub const ALL: [Self; 11] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::I64,
        Self::I32,
        Self::I8,
        Self::I4,
        Self::I1,
        Self::U32,
        Self::U8,
        Self::U4,
    ];

    /// The name in MLIR text: `f32`, `bf16`, `i32`, `ui8`.
    pub fn mlir(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::I64 => "i64",
            Self::I32 => "i32",
            Self::I8 => "i8",
            Self::I4 => "i4",
            Self::I1 => "i1",
            Self::U32 => "ui32",
            Self::U8 => "ui8",
            Self::U4 => "ui4",
        }
    }

    /// The width in bits; a boolean counts as 1.
    #[inline]
    pub fn bits(self) -> usize {
        match self {
            Self::I64 => 64,
            Self::F32 | Self::I32 | Self::U32 => 32,
            Self::F16 | Self::BF16 => 16,
            Self::I8 | Self::U8 => 8,
            Self::I4 | Self::U4 => 4,
            Self::I1 => 1,
        }
    }

    /// The bytes of `count` dense elements: 4-bit elements share bytes, a boolean takes a whole one.
    /// Saturates at `usize::MAX`.
    #[inline]
    pub fn bytes_for(self, count: usize) -> usize {
        match self {
            Self::I1 => count,
            Self::I4 | Self::U4 => count.div_ceil(2),
            _ => count.saturating_mul(self.bits() / 8),
        }
    }

    /// Whether this is a floating-point type.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::BF16)
    }

    /// Whether this is an integer type; booleans are not.
    pub fn is_integer(self) -> bool {
        !self.is_float() && self != Self::I1
    }

    /// Whether this is a signed integer type.
    pub fn is_signed(self) -> bool {
        matches!(self, Self::I64 | Self::I32 | Self::I8 | Self::I4)
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.mlir())
    }
}

/// An element type and static dimension sizes, outermost first. A scalar has no dimensions.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// The type of each element.
    pub element: ElementType,
    /// The dimension sizes; zero is allowed.
    pub shape: Vec<usize>,
}

impl TensorType {
    /// The type of a tensor of `element` with `shape`.
    pub fn new(element: ElementType, shape: impl Into<Vec<usize>>) -> Self {
        Self { element, shape: shape.into() }
    }

    /// The type of a scalar.
    pub fn scalar(element: ElementType) -> Self {
        Self::new(element, [])
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// The number of elements. Saturates at `usize::MAX`, which no type inside a program reaches.
    pub fn elements(&self) -> usize {
        if self.shape.contains(&0) {
            return 0;
        }
        self.shape.iter().fold(1, |count: usize, &size| count.saturating_mul(size))
    }

    /// The bytes of a dense tensor of this type; saturates as [`elements`](Self::elements) does.
    pub fn bytes(&self) -> usize {
        self.element.bytes_for(self.elements())
    }

    /// The same shape with another element type.
    #[must_use]
    pub fn with_element(&self, element: ElementType) -> Self {
        Self::new(element, self.shape.clone())
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tensor<")?;
        for size in &self.shape {
            write!(f, "{size}x")?;
        }
        write!(f, "{}>", self.element)
    }
}

impl fmt::Debug for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
