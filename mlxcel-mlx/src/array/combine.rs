//! Several arrays as one.

use mlxcel_core::Result;

use super::{Array, list};
use crate::ffi::sys;

/// Arrays consecutively along an axis; their other dimensions agree. A single array is returned as it is.
pub(crate) fn concatenate<'a>(arrays: impl IntoIterator<Item = &'a Array>, axis: i32) -> Result<Array> {
    const OPERATION: &str = "concatenate";
    Array::made(sys::concatenate(&*list(arrays, OPERATION)?, axis), OPERATION)
}
