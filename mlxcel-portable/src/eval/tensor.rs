//! Input and result tensors of a run.

use bytemuck::CheckedBitPattern;
use mlxcel_stablehlo::{Element, Literal, TensorType};

use super::buffer::Buffer;
use super::error::{EvalError, Result};

/// A dense row-major tensor with its own, cache-line-aligned storage.
///
/// A boolean takes one byte. 4-bit elements share bytes, the first in the low bits.
#[derive(Clone, Debug)]
pub struct Tensor {
    ty: TensorType,
    pub(super) buffer: Buffer,
}

impl Tensor {
    pub(super) fn from_buffer(ty: TensorType, buffer: Buffer) -> Self {
        Self { ty, buffer }
    }

    /// A tensor of zeros (or `false`). The pages of a large tensor take memory only when they are written.
    ///
    /// # Errors
    /// [`EvalError::OutOfMemory`].
    pub fn zeros(ty: TensorType) -> Result<Self> {
        let buffer = Buffer::zeroed(ty.bytes())?;
        Ok(Self { ty, buffer })
    }

    /// A tensor of `shape` from its elements in row-major order.
    ///
    /// # Errors
    /// [`EvalError::TensorLength`] if the number of elements does not match the shape;
    /// [`EvalError::OutOfMemory`].
    pub fn from_slice<T: Element>(shape: impl Into<Vec<usize>>, elements: &[T]) -> Result<Self> {
        Self::from_bytes(TensorType::new(T::TYPE, shape), bytemuck::cast_slice(elements))
    }

    /// A scalar.
    pub fn scalar<T: Element>(value: T) -> Self {
        let ty = TensorType::scalar(T::TYPE);
        Self { ty, buffer: Buffer::copy_of_few(bytemuck::bytes_of(&value)) }
    }

    /// A tensor from its dense bytes.
    ///
    /// # Errors
    /// [`EvalError::TensorLength`] if their number does not match the type; [`EvalError::OutOfMemory`].
    pub fn from_bytes(ty: TensorType, bytes: &[u8]) -> Result<Self> {
        if bytes.len() != ty.bytes() {
            return Err(EvalError::TensorLength { expected: ty.bytes(), actual: bytes.len(), ty });
        }
        Ok(Self { ty, buffer: Buffer::copy_of(bytes)? })
    }

    /// Its type.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// Its elements in row-major order, or `None` if they are not of type `T`.
    pub fn as_slice<T: Element + CheckedBitPattern>(&self) -> Option<&[T]> {
        if T::TYPE != self.ty.element {
            return None;
        }
        bytemuck::checked::try_cast_slice(self.bytes()).ok()
    }

    /// Its elements in row-major order, mutable, or `None` if they are not of type `T`.
    pub fn as_mut_slice<T: Element + CheckedBitPattern>(&mut self) -> Option<&mut [T]> {
        if T::TYPE != self.ty.element {
            return None;
        }
        bytemuck::checked::try_cast_slice_mut(self.buffer.bytes_mut()).ok()
    }

    /// Its dense bytes.
    pub fn bytes(&self) -> &[u8] {
        self.buffer.bytes()
    }

    /// Its dense bytes, mutable. A boolean is true if its byte is not zero.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.buffer.bytes_mut()
    }
}

impl From<&Literal> for Tensor {
    fn from(literal: &Literal) -> Self {
        Self { ty: literal.ty().clone(), buffer: Buffer::copy_of_few(literal.bytes()) }
    }
}

impl PartialEq for Tensor {
    /// Equality of types and bytes: NaNs of equal bits are equal, zeros of different sign are not.
    fn eq(&self, other: &Self) -> bool {
        self.ty == other.ty && self.bytes() == other.bytes()
    }
}

/// One argument of a run.
#[derive(Debug)]
pub enum Input<'a> {
    /// Bytes owned by the caller, such as a weight in a mapped file. They need no alignment and are read in
    /// place, without a copy of the whole tensor in this or another element type.
    Borrowed {
        /// The type of the tensor.
        ty: &'a TensorType,
        /// Its dense bytes.
        bytes: &'a [u8],
    },
    /// A tensor that the caller donates. If the program updates it after its last other use, the update is in
    /// place; if it is a result, the same storage is returned.
    Owned(Tensor),
}

impl<'a> Input<'a> {
    /// The type of the tensor.
    pub fn ty(&self) -> &TensorType {
        match self {
            Self::Borrowed { ty, .. } => ty,
            Self::Owned(tensor) => tensor.ty(),
        }
    }
}

impl<'a> From<&'a Tensor> for Input<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Self::Borrowed { ty: tensor.ty(), bytes: tensor.bytes() }
    }
}

impl<'a> From<&'a Literal> for Input<'a> {
    fn from(literal: &'a Literal) -> Self {
        Self::Borrowed { ty: literal.ty(), bytes: literal.bytes() }
    }
}

impl From<Tensor> for Input<'_> {
    fn from(tensor: Tensor) -> Self {
        Self::Owned(tensor)
    }
}
