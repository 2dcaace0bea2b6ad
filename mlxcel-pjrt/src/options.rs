//! Values of options, which plugins and compilers have by names of their own.

use std::fmt;
use std::str::FromStr;

use mlxcel_core::{Error, ErrorKind, Result};

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

impl From<&str> for OptionValue {
    /// Text as text, whatever it looks like; [`FromStr`] looks for numbers.
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<i64> for OptionValue {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<bool> for OptionValue {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<f32> for OptionValue {
    fn from(value: f32) -> Self {
        Self::Float(value)
    }
}

impl FromStr for OptionValue {
    type Err = Error;

    /// A truth value (`true`, `false`), an integer, a float, or text: the first that it is.
    fn from_str(text: &str) -> Result<Self> {
        if text.contains('\0') {
            return Err(Error::new(ErrorKind::InvalidInput, "read option", "a value has no zero bytes"));
        }
        let value = text.parse().map(Self::Bool).ok();
        let value = value.or_else(|| text.parse().map(Self::Int).ok());
        let value = value.or_else(|| text.parse().map(Self::Float).ok());
        Ok(value.unwrap_or_else(|| Self::Text(text.to_owned())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_the_first_kind_that_it_reads_as() {
        let read = |text: &str| text.parse::<OptionValue>().unwrap();
        assert_eq!(read("true"), OptionValue::Bool(true));
        assert_eq!(read("-3"), OptionValue::Int(-3));
        assert_eq!(read("0.5"), OptionValue::Float(0.5));
        assert_eq!(read("bfc"), OptionValue::Text("bfc".to_owned()));
        assert!("a\0b".parse::<OptionValue>().is_err());
    }
}
