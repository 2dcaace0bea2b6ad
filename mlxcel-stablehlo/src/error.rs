//! What a program cannot be, and why.

use std::fmt;

use crate::types::TensorType;

/// Shorthand for a result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation cannot be part of a program: the operation, what is wrong with which operand, and the types of
/// all its operands.
///
/// ```
/// # use mlxcel_stablehlo::{ElementType, ModuleBuilder, TensorType};
/// let error = ModuleBuilder::new("demo")
///     .function("main", |b| {
///         let x = b.argument("x", TensorType::new(ElementType::F32, [2, 3]))?;
///         let y = b.argument("y", TensorType::new(ElementType::F32, [3]))?;
///         Ok(vec![b.add(x, y)?])
///     })
///     .unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "add: lhs and rhs must have the same type (lhs: tensor<2x3xf32>, rhs: tensor<3xf32>), in `main`"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(Box<Inner>);

/// What is wrong, for those who decide by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An operand has a rank or a size that the operation cannot take.
    Shape,
    /// An operand has an element type that the operation cannot take.
    Element,
    /// A dimension number, bound, permutation or other attribute does not fit the operands.
    Attribute,
    /// A tensor would have more bytes than memory can address.
    Overflow,
    /// A value is used outside of the region that made it.
    Scope,
    /// A function or argument name is taken, or unknown.
    Name,
    /// The program is put together wrongly: a wrong number of values, a misplaced argument, an impossible alias.
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
    /// An error of `op` without operands to show, for functions that build on [`Builder`](crate::Builder) and find something
    /// wrong themselves.
    pub fn new(kind: ErrorKind, op: impl Into<String>, detail: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            op: op.into(),
            detail: detail.into(),
            operands: Vec::new(),
            within: Vec::new(),
        }))
    }

    /// The same with the types of the operands.
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

    /// What is wrong.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The operation that was to be made, by its StableHLO name.
    pub fn op(&self) -> &str {
        &self.0.op
    }

    /// The name and type of each operand of the operation, where it has any.
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
