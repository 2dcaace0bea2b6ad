//! Shape inference: the result types of operations.
//!
//! Pure functions over [`TensorType`]s, independent of building and printing. For operations whose result
//! StableHLO infers, these do the same; for those with an explicit result type (`reshape`,
//! `broadcast_in_dim`, …), they check it. They are at least as strict as the specification. All return an
//! [`Error`] that shows every operand's type.

/// Returns an error of this kind at a site, with the formatted detail, unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $site:ident.$kind:ident, $($detail:tt)+) => {
        if !$condition {
            return Err($site.$kind(format!($($detail)+)));
        }
    };
}

mod contraction;
mod elementwise;
mod indexed;
mod regions;
mod shape;
mod slices;
mod verify;

pub use contraction::{dot_general, reduce, reduce_argmax};
pub use elementwise::{binary, bitcast_convert, clamp, compare, convert, select, unary};
pub use indexed::{gather, scatter};
pub use regions::{call, while_loop};
pub use shape::{broadcast_in_dim, concatenate, iota, pad, reshape, transpose};
pub use slices::{dynamic_slice, dynamic_update_slice, slice};
pub use verify::results as verify;

use crate::error::{Error, ErrorKind, Result};
use crate::types::{ElementType, TensorType};

/// An operation with its operands, for error messages. Operands beyond the names are numbered by the last.
struct Site<'a> {
    op: &'a str,
    names: &'a [&'a str],
    types: &'a [&'a TensorType],
}

impl Site<'_> {
    fn name(&self, operand: usize) -> String {
        let last = self.names.len() - 1;
        match self.names.get(operand) {
            Some(name) if operand < last || self.types.len() <= self.names.len() => (*name).to_owned(),
            _ => format!("{} {}", self.names[last], operand.saturating_sub(last)),
        }
    }

    fn error(&self, kind: ErrorKind, detail: impl Into<String>) -> Error {
        let operands = self.types.iter().enumerate().map(|(i, ty)| (self.name(i), (*ty).clone())).collect();
        Error::new(kind, self.op, detail).with_operands(operands)
    }

    fn shape(&self, detail: impl Into<String>) -> Error {
        self.error(ErrorKind::Shape, detail)
    }

    fn element(&self, detail: impl Into<String>) -> Error {
        self.error(ErrorKind::Element, detail)
    }

    fn attribute(&self, detail: impl Into<String>) -> Error {
        self.error(ErrorKind::Attribute, detail)
    }

    fn structure(&self, detail: impl Into<String>) -> Error {
        self.error(ErrorKind::Structure, detail)
    }

    fn overflow(&self, detail: impl Into<String>) -> Error {
        self.error(ErrorKind::Overflow, detail)
    }

    /// Returns `ty` if memory can address it, which holds for every value of a program.
    fn sized(&self, ty: TensorType) -> Result<TensorType> {
        ensure!(addressable(&ty), self.overflow, "a {ty} is larger than memory can address");
        Ok(ty)
    }

    /// Operand `i` is a scalar.
    fn scalar(&self, i: usize) -> Result<()> {
        ensure!(self.types[i].rank() == 0, self.shape, "{} must be a scalar", self.name(i));
        Ok(())
    }

    /// Operand `i` is of integers.
    fn integers(&self, i: usize) -> Result<()> {
        ensure!(self.types[i].element.is_integer(), self.element, "{} must be of integers", self.name(i));
        Ok(())
    }

    /// Operands `i` and `j` have the same element type.
    fn same_element(&self, i: usize, j: usize) -> Result<()> {
        let same = self.types[i].element == self.types[j].element;
        let names = || format!("{} and {}", self.name(i), self.name(j));
        ensure!(same, self.element, "{} must have the same element type", names());
        Ok(())
    }

    /// `dimension` is one of operand `i`.
    fn dimension(&self, i: usize, dimension: usize) -> Result<()> {
        let rank = self.types[i].rank();
        let name = || self.name(i);
        ensure!(
            dimension < rank,
            self.attribute,
            "dimension {dimension} of {}, which has rank {rank}",
            name()
        );
        Ok(())
    }

    /// `list` has an entry for each dimension of operand `i`.
    fn per_dimension(&self, what: &str, length: usize, i: usize) -> Result<()> {
        let rank = self.types[i].rank();
        let name = || self.name(i);
        ensure!(
            length == rank,
            self.attribute,
            "{what} has {length} entries, but {} has rank {rank}",
            name()
        );
        Ok(())
    }
}

/// Whether a tensor of this type has fewer bits than `isize` counts, each size of zero taken as one.
fn addressable(ty: &TensorType) -> bool {
    let bits = ty.element.bits().max(8);
    let total = ty.shape.iter().try_fold(bits, |total: usize, &size| total.checked_mul(size.max(1)));
    total.is_some_and(|total| isize::try_from(total).is_ok())
}

/// Returns `ty` if memory can address it, which holds for every value of a program.
pub fn sized(op: &str, ty: TensorType) -> Result<TensorType> {
    Site { op, names: &["operand"], types: &[] }.sized(ty)
}

/// Whether `dimensions` has no entry twice.
fn distinct(dimensions: &[usize]) -> bool {
    dimensions.iter().enumerate().all(|(i, dimension)| !dimensions[..i].contains(dimension))
}

/// Whether `dimensions` is strictly ascending.
fn ascending(dimensions: &[usize]) -> bool {
    dimensions.windows(2).all(|pair| pair[0] < pair[1])
}

/// Whether numbers can be counted and computed with in this type: all but booleans.
fn is_number(element: ElementType) -> bool {
    element != ElementType::I1
}
