//! Constant tensors.

use std::sync::Arc;

use bytemuck::NoUninit;
use half::{bf16, f16};

use crate::types::{ElementType, TensorType};

/// A constant tensor: a type and dense, row-major, little-endian bytes.
///
/// A boolean takes one byte (0 or 1). 4-bit elements share bytes, the first in the low bits.
#[derive(Clone, PartialEq)]
pub struct Literal {
    ty: TensorType,
    bytes: Arc<[u8]>,
}

/// A Rust type whose slices are the elements of a [`Literal`].
///
/// Sealed: these are all element types with a Rust counterpart. Use [`Literal::from_bytes`] for 4-bit
/// elements.
pub trait Element: NoUninit + sealed::Sealed {
    /// The corresponding element type.
    const TYPE: ElementType;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($rust:ty => $element:ident),*) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const TYPE: ElementType = ElementType::$element;
        }
    )*};
}
elements!(f32 => F32, f16 => F16, bf16 => BF16, i64 => I64, i32 => I32, i8 => I8, bool => I1, u32 => U32, u8 => U8);

impl Literal {
    /// A tensor of `shape` from its elements in row-major order, or `None` if their number does not match.
    pub fn new<T: Element>(shape: impl Into<Vec<usize>>, elements: &[T]) -> Option<Self> {
        let ty = TensorType::new(T::TYPE, shape);
        Self::from_bytes(ty, bytemuck::cast_slice::<T, u8>(elements))
    }

    /// A scalar.
    pub fn scalar<T: Element>(value: T) -> Self {
        let ty = TensorType::scalar(T::TYPE);
        Self { ty, bytes: bytemuck::bytes_of(&value).into() }
    }

    /// A tensor from its dense bytes, or `None` if their number does not match the type or a boolean is
    /// neither 0 nor 1.
    pub fn from_bytes(ty: TensorType, bytes: impl Into<Arc<[u8]>>) -> Option<Self> {
        let bytes = bytes.into();
        let valid =
            bytes.len() == ty.bytes() && (ty.element != ElementType::I1 || bytes.iter().all(|&b| b < 2));
        valid.then_some(Self { ty, bytes })
    }

    /// A scalar of any element type, or `None` if an integer type cannot represent `value` exactly.
    /// Floating-point types round to nearest, ties to even; booleans accept 0 and 1.
    pub fn scalar_from_f64(element: ElementType, value: f64) -> Option<Self> {
        let exactly = |least: f64, bound: f64| {
            (value.fract() == 0.0 && value >= least && value < bound).then_some(value as i64)
        };
        Some(match element {
            ElementType::F32 => Self::scalar(value as f32),
            ElementType::F16 => Self::scalar(f16::from_f64(value)),
            ElementType::BF16 => Self::scalar(bf16::from_f64(value)),
            ElementType::I64 => Self::scalar(exactly(-(2f64.powi(63)), 2f64.powi(63))?),
            ElementType::I32 => Self::scalar(exactly(-(2f64.powi(31)), 2f64.powi(31))? as i32),
            ElementType::I8 => Self::scalar(exactly(-128.0, 128.0)? as i8),
            ElementType::U32 => Self::scalar(exactly(0.0, 2f64.powi(32))? as u32),
            ElementType::U8 => Self::scalar(exactly(0.0, 256.0)? as u8),
            ElementType::I1 => Self::scalar(exactly(0.0, 2.0)? != 0),
            ElementType::I4 | ElementType::U4 => {
                let (least, bound) = if element == ElementType::I4 { (-8.0, 8.0) } else { (0.0, 16.0) };
                let nibble = exactly(least, bound)? as u8 & 0xf;
                Self { ty: TensorType::scalar(element), bytes: [nibble].into() }
            }
        })
    }

    /// Its type.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// Its dense bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl std::fmt::Debug for Literal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Literal({})", self.ty)
    }
}
