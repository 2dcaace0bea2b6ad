//! Values of options, which plugins and compilers have by names of their own.

use std::fmt;

/// The value of an option of a plugin, or of its compiler.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum OptionValue {
    /// Text.
    Text(String),
    /// A 64-bit integer.
    Int(i64),
    /// A 32-bit float.
    Float(f32),
    /// A truth value.
    Bool(bool),
}

impl fmt::Display for OptionValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Int(value) => value.fmt(f),
            Self::Float(value) => value.fmt(f),
            Self::Bool(value) => value.fmt(f),
        }
    }
}

macro_rules! values_of {
    ($($type:ty => $variant:ident,)*) => {
        $(impl From<$type> for OptionValue {
            fn from(value: $type) -> Self {
                Self::$variant(value.into())
            }
        })*
    };
}

values_of! {
    &str => Text,
    i64 => Int,
    f32 => Float,
    bool => Bool,
}
