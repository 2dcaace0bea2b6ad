//! Element types, shapes and tensor types.

use std::fmt;

/// Declares the types of elements, each with its name in MLIR text and its width in bits.
macro_rules! element_types {
    ($($(#[$doc:meta])* $type:ident = $name:literal, $bits:literal;)*) => {
        /// The type of one element of a tensor.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum ElementType {
            $($(#[$doc])* $type,)*
        }

        impl ElementType {
            /// Every element type.
            pub const ALL: [Self; [$($bits),*].len()] = [$(Self::$type),*];

            /// The name in MLIR text: `f32`, `bf16`, `i32`, `ui8`.
            pub fn mlir(self) -> &'static str {
                match self {
                    $(Self::$type => $name,)*
                }
            }

            /// The width in bits; a boolean counts as 1.
            #[inline]
            pub fn bits(self) -> usize {
                match self {
                    $(Self::$type => $bits,)*
                }
            }
        }
    };
}

element_types! {
    /// IEEE 754 binary32.
    F32 = "f32", 32;
    /// IEEE 754 binary16.
    F16 = "f16", 16;
    /// bfloat16: the upper half of a binary32.
    BF16 = "bf16", 16;
    /// Signed 64-bit integer.
    I64 = "i64", 64;
    /// Signed 32-bit integer.
    I32 = "i32", 32;
    /// Signed 8-bit integer.
    I8 = "i8", 8;
    /// Signed 4-bit integer, two to a byte with the first in the low bits.
    I4 = "i4", 4;
    /// Boolean.
    I1 = "i1", 1;
    /// Unsigned 32-bit integer.
    U32 = "ui32", 32;
    /// Unsigned 8-bit integer.
    U8 = "ui8", 8;
    /// Unsigned 4-bit integer, two to a byte with the first in the low bits.
    U4 = "ui4", 4;
}

impl ElementType {
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
