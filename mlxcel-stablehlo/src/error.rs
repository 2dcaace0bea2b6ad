//! Errors of building and verifying programs.

use std::fmt;

use crate::types::TensorType;

/// Shorthand for a result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation is invalid: the operation, the operand and what is wrong with it, and the types of all
/// operands.
///
/// ```
/// # use mlxcel_stablehlo::{ElementType, Module, TensorType};
/// let error = Module::of_function("demo", "main", |b| {
///     let x = b.argument("x", TensorType::new(ElementType::F32, [2, 3]))?;
///     let y = b.argument("y", TensorType::new(ElementType::F32, [3]))?;
///     Ok(vec![b.add(x, y)?])
/// })
/// .unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "add: lhs and rhs must have the same type (lhs: tensor<2x3xf32>, rhs: tensor<3xf32>), in `main`"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(Box<Inner>);

/// The category of an [`Error`], to match on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An operand's rank or size is invalid for the operation.
    Shape,
    /// An operand's element type is invalid for the operation.
    Element,
    /// A dimension number, bound, permutation or other attribute does not fit the operands.
    Attribute,
    /// A tensor would be larger than the address space.
    Overflow,
    /// A value is used outside of its region.
    Scope,
    /// A function or argument name is taken, or unknown.
    Name,
    /// The program's structure is invalid: a wrong number of values, a misplaced argument, an impossible
    /// alias.
    Structure,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Inner {
    kind: ErrorKind,
    op: String,
    detail: String,
    operands: Vec<(String, TensorType)>,
    within: Vec<String>,
}

impl Error {
    /// An error of the operation `op` without operands, for functions that extend [`Builder`](crate::Builder)
    /// with checks of their own.
    pub fn new(kind: ErrorKind, op: impl Into<String>, detail: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            op: op.into(),
            detail: detail.into(),
            operands: Vec::new(),
            within: Vec::new(),
        }))
    }

    /// Adds the names and types of the operands.
    #[must_use]
    pub fn with_operands(mut self, operands: Vec<(String, TensorType)>) -> Self {
        self.0.operands = operands;
        self
    }

    /// The same, found while `function` was built; callers further out add theirs.
    pub(crate) fn within(mut self, function: &str) -> Self {
        self.0.within.push(function.to_owned());
        self
    }

    /// The category of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The StableHLO name of the operation.
    pub fn op(&self) -> &str {
        &self.0.op
    }

    /// The name and type of each operand; empty if the error has none.
    pub fn operands(&self) -> &[(String, TensorType)] {
        &self.0.operands
    }
}

impl fmt::Display for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.op, self.detail)?;
        for (i, (name, ty)) in self.operands.iter().enumerate() {
            write!(f, "{}{name}: {ty}", if i == 0 { " (" } else { ", " })?;
        }
        if !self.operands.is_empty() {
            f.write_str(")")?;
        }
        for function in &self.within {
            write!(f, ", in `{function}`")?;
        }
        Ok(())
    }
}
