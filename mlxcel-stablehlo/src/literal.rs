//! Constant tensors: a type and its bytes.

use std::sync::Arc;

use bytemuck::NoUninit;
use half::{bf16, f16};

use crate::types::{ElementType, TensorType};

/// A constant tensor: row-major, little-endian, dense bytes.
///
/// Truth values take one byte each (0 or 1); 4-bit elements share bytes, the first in the low bits.
#[derive(Clone, PartialEq)]
pub struct Literal {
    ty: TensorType,
    bytes: Arc<[u8]>,
}

/// A Rust type whose slices are the elements of a [`Literal`].
pub trait Element: NoUninit {
    /// The element type that it stands for.
    const TYPE: ElementType;
}

macro_rules! elements {
    ($($rust:ty => $element:ident),*) => {$(
        impl Element for $rust {
            const TYPE: ElementType = ElementType::$element;
        }
    )*};
}
elements!(f32 => F32, f16 => F16, bf16 => BF16, i64 => I64, i32 => I32, i8 => I8, bool => I1, u32 => U32, u8 => U8);

impl Literal {
    /// A tensor of `shape` from its elements in row-major order, or `None` where their number does not match.
    pub fn new<T: Element>(shape: impl Into<Vec<usize>>, elements: &[T]) -> Option<Self> {
        let ty = TensorType::new(T::TYPE, shape);
        Self::from_bytes(ty, bytemuck::cast_slice::<T, u8>(elements))
    }

    /// A single element.
    pub fn scalar<T: Element>(value: T) -> Self {
        let ty = TensorType::scalar(T::TYPE);
        Self { ty, bytes: bytemuck::bytes_of(&value).into() }
    }

    /// A tensor from its dense bytes, or `None` where their number does not match the type or a truth value is
    /// neither 0 nor 1.
    pub fn from_bytes(ty: TensorType, bytes: impl Into<Arc<[u8]>>) -> Option<Self> {
        let bytes = bytes.into();
        let valid = bytes.len() == ty.bytes() && (ty.element != ElementType::I1 || bytes.iter().all(|&b| b < 2));
        valid.then_some(Self { ty, bytes })
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
