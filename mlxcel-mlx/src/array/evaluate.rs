//! Computing arrays, and reading them.

use bytemuck::Zeroable;
use bytemuck::allocation::try_zeroed_slice_box;
use mlxcel_core::{Error, ErrorKind, Result};

use super::{Array, Element, list};
use crate::ffi::{self, sys};

/// The operation name in errors.
const READ: &str = "read an array";

/// Computes arrays with all their dependencies, and waits for them.
pub(crate) fn eval<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> Result<()> {
    const OPERATION: &str = "evaluate";
    ffi::check(sys::evaluate(&*list(arrays, OPERATION)?), OPERATION)
}

/// Starts computing arrays with all their dependencies; reading one waits for it.
pub(crate) fn eval_async<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> Result<()> {
    const OPERATION: &str = "evaluate";
    ffi::check(sys::evaluate_async(&*list(arrays, OPERATION)?), OPERATION)
}

impl Array {
    /// The elements, row-major, computed if necessary.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Internal`] if the array has another type; otherwise as [`eval`].
    pub(crate) fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        let dtype = self.dtype()?;
        if dtype != T::DTYPE {
            return Err(Error::new(ErrorKind::Internal, READ, "the array has another type")
                .with_context("dtype", format_args!("{dtype:?}"))
                .with_context("asked", format_args!("{:?}", T::DTYPE)));
        }
        let mut values: Box<[T]> = zeros(self.len())?;
        ffi::check(sys::read(self.tensor(), bytemuck::cast_slice_mut(&mut values)), READ)?;
        Ok(values.into_vec())
    }

    /// The elements' bytes, row-major and little-endian, computed if necessary.
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut bytes: Box<[u8]> = zeros(self.byte_len())?;
        ffi::check(sys::read(self.tensor(), &mut bytes), READ)?;
        Ok(bytes.into_vec())
    }
}

/// A buffer for `count` elements.
fn zeros<T: Zeroable>(count: usize) -> Result<Box<[T]>> {
    let bytes = count.saturating_mul(size_of::<T>());
    try_zeroed_slice_box(count).map_err(|()| Error::out_of_memory(READ, bytes))
}
