//! Computing arrays, and reading them.

use mlxcel_core::{Error, ErrorKind, Result};

use super::{Array, Element, list};
use crate::ffi::{self, sys};

/// Computes arrays, and all that they depend on, and waits for it.
pub(crate) fn eval<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> Result<()> {
    const OPERATION: &str = "evaluate";
    ffi::check(sys::evaluate(&*list(arrays, OPERATION)?), OPERATION)
}

/// Begins to compute arrays, and all that they depend on; reading one waits for it.
pub(crate) fn eval_async<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> Result<()> {
    const OPERATION: &str = "evaluate";
    ffi::check(sys::evaluate_async(&*list(arrays, OPERATION)?), OPERATION)
}

impl Array {
    /// The elements, row-major, computed if they are not yet.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Internal`] where the array has another type; else as [`eval`].
    pub(crate) fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        const OPERATION: &str = "read an array";
        let dtype = self.dtype()?;
        if dtype != T::DTYPE {
            return Err(Error::new(ErrorKind::Internal, OPERATION, "the array has another type")
                .with_context("dtype", format_args!("{dtype:?}"))
                .with_context("asked", format_args!("{:?}", T::DTYPE)));
        }
        let mut values = vec![T::zeroed(); self.len()];
        ffi::check(sys::read(self.tensor(), bytemuck::cast_slice_mut(&mut values)), OPERATION)?;
        Ok(values)
    }

    /// The elements as they lie in memory, row-major and little-endian, computed if they are not yet.
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.byte_len()];
        ffi::check(sys::read(self.tensor(), &mut bytes), "read an array")?;
        Ok(bytes)
    }
}
