//! The same elements in another shape or type.

use mlxcel_core::Result;

use super::{Array, DType, sizes};
use crate::ffi::sys;

impl Array {
    /// The values in another type; the same array if it is the same type.
    pub(crate) fn astype(&self, dtype: DType) -> Result<Self> {
        Self::made(sys::astype(self.tensor(), dtype.code()), "convert an array")
    }

    /// The bits as another type. The last dimension changes with the size of an element.
    pub(crate) fn reinterpret(&self, dtype: DType) -> Result<Self> {
        Self::made(sys::reinterpret(self.tensor(), dtype.code()), "reinterpret an array")
    }

    /// Repeated along new axes in front and along axes of size one, without a copy.
    pub(crate) fn broadcast_to(&self, shape: &[usize]) -> Result<Self> {
        const OPERATION: &str = "broadcast";
        Self::made(sys::broadcast_to(self.tensor(), &sizes(shape, OPERATION)?), OPERATION)
    }

    /// The elements in contiguous memory of their own, so that a larger array need not be kept.
    pub(crate) fn contiguous(&self) -> Result<Self> {
        Self::made(sys::contiguous(self.tensor()), "copy an array")
    }

    /// The elements, in order, in another shape.
    pub(crate) fn reshape(&self, shape: &[usize]) -> Result<Self> {
        const OPERATION: &str = "reshape";
        Self::made(sys::reshape(self.tensor(), &sizes(shape, OPERATION)?), OPERATION)
    }

    /// Permutes axes: axis `i` of the result is axis `axes[i]` of this array.
    pub(crate) fn transpose(&self, axes: &[i32]) -> Result<Self> {
        Self::made(sys::transpose(self.tensor(), axes), "transpose")
    }

    /// Adds axes of size one at these indices of the result.
    pub(crate) fn expand_dims(&self, axes: &[i32]) -> Result<Self> {
        Self::made(sys::expand_dims(self.tensor(), axes), "expand dimensions")
    }

    /// Removes these axes of size one.
    pub(crate) fn squeeze(&self, axes: &[i32]) -> Result<Self> {
        Self::made(sys::squeeze(self.tensor(), axes), "squeeze")
    }
}
