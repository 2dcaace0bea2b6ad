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

/// A Rust type that is an array's element.
pub(crate) trait Element: bytemuck::Pod {
    /// The array's type.
    const DTYPE: DType;
}

/// Declares the types of elements, called the same in checkpoints and in the bridge, with their sizes in
/// bytes; and the Rust types that are such elements.
macro_rules! element_types {
    ($($(#[$doc:meta])* $name:ident: $size:literal $(= $rust:ty)?;)*) => {
        /// The type of an array's elements.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) enum DType {
            $($(#[$doc])* $name,)*
        }

        impl DType {
            /// The size of an element in bytes.
            pub(crate) fn size(self) -> usize {
                match self {
                    $(Self::$name => $size,)*
                }
            }

            /// The type of a checkpoint's elements in MLX; none for those that MLX lacks. 8-bit floats are
            /// bytes to MLX.
            pub(crate) fn of(element: ElementType) -> Option<Self> {
                match element {
                    $(ElementType::$name => Some(Self::$name),)*
                    ElementType::F8E4M3 | ElementType::F8E8M0 => Some(Self::U8),
                    _ => None,
                }
            }

            /// The bridge's name for it.
            pub(crate) fn code(self) -> sys::ElementCode {
                match self {
                    $(Self::$name => sys::ElementCode::$name,)*
                }
            }

            fn from_code(code: sys::ElementCode) -> Option<Self> {
                match code {
                    $(sys::ElementCode::$name => Some(Self::$name),)*
                    _ => None,
                }
            }
        }

        $($(impl Element for $rust {
            const DTYPE: DType = DType::$name;
        })?)*
    };
}

element_types! {
    /// A boolean in one byte.
    Bool: 1;
    /// Unsigned integers.
    U8: 1 = u8;
    U16: 2 = u16;
    U32: 4 = u32;
    U64: 8 = u64;
    /// Signed integers.
    I8: 1;
    I16: 2;
    I32: 4 = i32;
    I64: 8 = i64;
    /// IEEE 754 half precision.
    F16: 2 = half::f16;
    /// The upper half of an `F32`.
    BF16: 2 = half::bf16;
    /// IEEE 754 single precision.
    F32: 4 = f32;
    /// IEEE 754 double precision; CPU only.
    F64: 8;
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
