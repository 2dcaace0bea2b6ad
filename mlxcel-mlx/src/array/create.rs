//! Arrays from the host.

use std::sync::Arc;

use mlxcel_core::{Error, ErrorKind, Result};

use super::{Array, DType, Element, sizes};
use crate::ffi::{self, sys};

impl Array {
    /// An array of `shape` with a copy of `values`, row-major.
    pub(crate) fn from_slice<T: Element>(values: &[T], shape: &[usize]) -> Result<Self> {
        Self::from_bytes(bytemuck::cast_slice(values), shape, T::DTYPE)
    }

    /// An array of `shape` with a copy of `bytes`, its elements row-major and little-endian, at any
    /// alignment.
    pub(crate) fn from_bytes(bytes: &[u8], shape: &[usize], dtype: DType) -> Result<Self> {
        let dims = checked(bytes, shape, dtype)?;
        Self::made(sys::from_bytes(bytes, &dims, dtype.code()), "make an array")
    }

    /// An array over the bytes of `source`, row-major and little-endian, without a copy: `source` is kept
    /// until no array uses them, and MLX does not write to them. They are copied if they are not aligned
    /// to the size of an element, are fewer than eight, or (with Metal) are not whole pages.
    ///
    /// `source` must return the same bytes on each call, and they must not change meanwhile: the result of
    /// reading changed bytes is unspecified.
    pub(crate) fn from_shared<T>(source: &Arc<T>, shape: &[usize], dtype: DType) -> Result<Self>
    where
        T: AsRef<[u8]> + Send + Sync + 'static,
    {
        let bytes = (**source).as_ref();
        let dims = checked(bytes, shape, dtype)?;
        if !bytes.as_ptr().addr().is_multiple_of(dtype.size()) {
            return Self::made(sys::from_bytes(bytes, &dims, dtype.code()), "make an array");
        }
        Self::made(ffi::from_shared(source, &dims, dtype.code()), "make an array")
    }

    /// A scalar: an array without dimensions.
    pub(crate) fn scalar(value: f32, dtype: DType) -> Result<Self> {
        Self::made(sys::scalar(value, dtype.code()), "make a scalar")
    }

    /// An array filled with `value`.
    pub(crate) fn full(shape: &[usize], value: f32, dtype: DType) -> Result<Self> {
        const OPERATION: &str = "fill an array";
        Self::made(sys::full(&sizes(shape, OPERATION)?, value, dtype.code()), OPERATION)
    }

    /// An array of zeros.
    pub(crate) fn zeros(shape: &[usize], dtype: DType) -> Result<Self> {
        Self::full(shape, 0.0, dtype)
    }

    /// `start`, `start + 1` and so on, up to but not including `stop`.
    pub(crate) fn arange(start: i32, stop: i32, dtype: DType) -> Result<Self> {
        Self::made(sys::arange(start, stop, dtype.code()), "count")
    }
}

/// The shape in MLX's type, if it matches the number of bytes.
fn checked(bytes: &[u8], shape: &[usize], dtype: DType) -> Result<Vec<i32>> {
    const OPERATION: &str = "make an array";
    let wanted = shape.iter().try_fold(dtype.size(), |product, &dim| product.checked_mul(dim));
    if wanted != Some(bytes.len()) {
        return Err(Error::new(ErrorKind::Internal, OPERATION, "the bytes do not fill the shape")
            .with_context("shape", format_args!("{shape:?}"))
            .with_context("dtype", format_args!("{dtype:?}"))
            .with_context("bytes", bytes.len()));
    }
    sizes(shape, OPERATION)
}
