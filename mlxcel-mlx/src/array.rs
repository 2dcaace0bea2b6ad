//! A safe API of MLX arrays: shapes and types are checked, and C++ exceptions become an [`Error`] with their
//! message.
//!
//! An [`Array`] is a handle on a node of MLX's graph. Operations create nodes and compute nothing; [`eval`]
//! computes nodes, and [`eval_async`] starts computing them. A clone is another handle of the same node.
//!
//! # Threads
//!
//! MLX's streams are bound to threads, and evaluating an array on a thread other than the one that created it
//! may fail. So an `Array` is neither [`Send`] nor [`Sync`]: it stays on its thread, of which each model has
//! one.
//!
//! # Errors
//!
//! All operations return errors of these kinds: [`ResourceExhausted`](ErrorKind::ResourceExhausted) if memory
//! runs out, [`Internal`](ErrorKind::Internal) for shapes and types that MLX rejects, which is a bug of the
//! caller, and [`Device`](ErrorKind::Device) for everything else. Creating a node fails only for shapes and
//! types; errors of memory or device occur at evaluation.
//!
//! # Conventions
//!
//! Shapes are `usize`, outermost first. Axes are `i32` and may be negative, counted from the last. Types
//! follow MLX: the operands of an operation on two arrays are promoted to one type; scalars take the array's
//! type.

mod combine;
mod create;
mod elementwise;
mod evaluate;
mod fused;
mod index;
mod packed;
mod reduce;
mod shape;

#[cfg(test)]
mod tests;

use std::fmt;

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_models::ElementType;

use crate::ffi::{self, Caught, Handle, sys};

pub(crate) use combine::concatenate;
pub(crate) use evaluate::{eval, eval_async};
pub(crate) use fused::{Mask, Rope};
pub(crate) use packed::{Mode, Packed};

/// The type of an array's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum DType {
    /// A boolean in one byte.
    Bool,
    /// Unsigned integers.
    U8,
    U16,
    U32,
    U64,
    /// Signed integers.
    I8,
    I16,
    I32,
    I64,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of an `F32`.
    BF16,
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 double precision; CPU only.
    F64,
}

impl DType {
    /// The size of an element in bytes.
    pub(crate) fn size(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 | Self::F16 | Self::BF16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// The type of a checkpoint's elements in MLX; none for those that MLX lacks. 8-bit floats are bytes to
    /// MLX.
    pub(crate) fn of(element: ElementType) -> Option<Self> {
        Some(match element {
            ElementType::Bool => Self::Bool,
            ElementType::U8 | ElementType::F8E4M3 | ElementType::F8E8M0 => Self::U8,
            ElementType::U16 => Self::U16,
            ElementType::U32 => Self::U32,
            ElementType::U64 => Self::U64,
            ElementType::I8 => Self::I8,
            ElementType::I16 => Self::I16,
            ElementType::I32 => Self::I32,
            ElementType::I64 => Self::I64,
            ElementType::F16 => Self::F16,
            ElementType::BF16 => Self::BF16,
            ElementType::F32 => Self::F32,
            ElementType::F64 => Self::F64,
            _ => return None,
        })
    }

    /// The bridge's name for it.
    pub(crate) fn code(self) -> sys::ElementCode {
        match self {
            Self::Bool => sys::ElementCode::Bool,
            Self::U8 => sys::ElementCode::U8,
            Self::U16 => sys::ElementCode::U16,
            Self::U32 => sys::ElementCode::U32,
            Self::U64 => sys::ElementCode::U64,
            Self::I8 => sys::ElementCode::I8,
            Self::I16 => sys::ElementCode::I16,
            Self::I32 => sys::ElementCode::I32,
            Self::I64 => sys::ElementCode::I64,
            Self::F16 => sys::ElementCode::F16,
            Self::BF16 => sys::ElementCode::BF16,
            Self::F32 => sys::ElementCode::F32,
            Self::F64 => sys::ElementCode::F64,
        }
    }

    fn from_code(code: sys::ElementCode) -> Option<Self> {
        const ALL: [DType; 13] = [
            DType::Bool,
            DType::U8,
            DType::U16,
            DType::U32,
            DType::U64,
            DType::I8,
            DType::I16,
            DType::I32,
            DType::I64,
            DType::F16,
            DType::BF16,
            DType::F32,
            DType::F64,
        ];
        ALL.into_iter().find(|dtype| dtype.code() == code)
    }
}

/// A Rust type that is an array's element.
pub(crate) trait Element: bytemuck::Pod {
    /// The array's type.
    const DTYPE: DType;
}

impl Element for u8 {
    const DTYPE: DType = DType::U8;
}
impl Element for u16 {
    const DTYPE: DType = DType::U16;
}
impl Element for u32 {
    const DTYPE: DType = DType::U32;
}
impl Element for u64 {
    const DTYPE: DType = DType::U64;
}
impl Element for i32 {
    const DTYPE: DType = DType::I32;
}
impl Element for i64 {
    const DTYPE: DType = DType::I64;
}
impl Element for f32 {
    const DTYPE: DType = DType::F32;
}
impl Element for half::f16 {
    const DTYPE: DType = DType::F16;
}
impl Element for half::bf16 {
    const DTYPE: DType = DType::BF16;
}

/// A handle on an MLX array or on the operation that computes it. See the [module](self).
pub(crate) struct Array(Handle);

impl Array {
    /// Wraps the result of an operation.
    pub(crate) fn made(answer: Caught<Handle>, operation: &'static str) -> Result<Self> {
        let handle = ffi::check(answer, operation)?;
        if handle.is_null() {
            return Err(Error::new(ErrorKind::Internal, operation, "MLX returned no array"));
        }
        Ok(Self(handle))
    }

    /// The array as the bridge takes it.
    pub(crate) fn tensor(&self) -> &sys::Tensor {
        &self.0
    }

    /// The sizes of the dimensions, outermost first; empty for a scalar.
    pub(crate) fn shape(&self) -> Vec<usize> {
        (0..sys::dimension_count(&self.0)).map(|axis| self.size_at(axis)).collect()
    }

    /// The number of dimensions.
    pub(crate) fn rank(&self) -> usize {
        sys::dimension_count(&self.0)
    }

    /// The size of one dimension; a negative axis counts from the last. Zero for an axis that the array does
    /// not have.
    pub(crate) fn dim(&self, axis: i32) -> usize {
        let from_end = if axis < 0 { self.rank() } else { 0 };
        from_end.checked_add_signed(axis as isize).map_or(0, |axis| self.size_at(axis))
    }

    fn size_at(&self, axis: usize) -> usize {
        sys::dimension(&self.0, axis).map_or(0, |size| usize::try_from(size).unwrap_or(0))
    }

    /// The number of elements.
    pub(crate) fn len(&self) -> usize {
        self.shape().iter().product()
    }

    /// The memory of the elements if they are dense; they may not be allocated yet.
    pub(crate) fn byte_len(&self) -> usize {
        sys::byte_count(&self.0)
    }

    /// The address of an evaluated array's elements.
    #[cfg(test)]
    pub(crate) fn address(&self) -> Result<usize> {
        ffi::check(sys::data_address(&self.0), "look at an array")
    }

    /// The type of the elements.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Internal`] for complex numbers, which no operation here makes.
    pub(crate) fn dtype(&self) -> Result<DType> {
        let code = ffi::check(sys::element_of(&self.0), "look at an array")?;
        DType::from_code(code).ok_or_else(|| {
            Error::new(ErrorKind::Internal, "look at an array", "MLX returned an unsupported element type")
        })
    }
}

/// Another handle on the same array: allocates a few bytes; a failure aborts the process, as in Rust.
impl Clone for Array {
    fn clone(&self) -> Self {
        Self(sys::duplicate(&self.0))
    }
}

impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("Array");
        text.field("shape", &self.shape());
        match self.dtype() {
            Ok(dtype) => text.field("dtype", &dtype),
            Err(_) => text.field("dtype", &"?"),
        };
        text.finish()
    }
}

/// Sizes in MLX's integer type.
fn sizes(values: &[usize], operation: &'static str) -> Result<Vec<i32>> {
    values.iter().map(|&value| size(value, operation)).collect()
}

/// A size in MLX's integer type.
fn size(value: usize, operation: &'static str) -> Result<i32> {
    i32::try_from(value).map_err(|_| {
        Error::new(ErrorKind::Internal, operation, "a dimension is longer than MLX allows")
            .with_context("size", value)
    })
}

/// Several arrays as the bridge takes them.
fn list<'a>(
    arrays: impl IntoIterator<Item = &'a Array>,
    operation: &'static str,
) -> Result<cxx::UniquePtr<sys::Arrays>> {
    let mut list = ffi::check(sys::arrays_new(), operation)?;
    for array in arrays {
        ffi::check(sys::arrays_push(list.pin_mut(), &array.0), operation)?;
    }
    Ok(list)
}

/// The arrays returned by a bridged function.
fn unlist(list: &sys::Arrays, operation: &'static str) -> Result<Vec<Array>> {
    (0..sys::arrays_len(list)).map(|index| Array::made(sys::arrays_get(list, index), operation)).collect()
}

/// The error for an axis that an array of this rank does not have.
fn no_axis(operation: &'static str, axis: i32, rank: usize) -> Error {
    Error::new(ErrorKind::Internal, operation, "the array does not have this axis")
        .with_context("axis", axis)
        .with_context("rank", rank)
}
