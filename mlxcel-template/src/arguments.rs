//! The arguments of a call, taken by position or by name.

use super::error::{Result, TemplateError, fail};
use super::meter::Meter;
use super::value::Value;

/// The values that something is called with.
#[derive(Clone, Debug, Default)]
pub(super) struct Values<'a> {
    pub(super) positional: Vec<Value<'a>>,
    pub(super) named: Vec<(&'a str, Value<'a>)>,
}

impl<'a> Values<'a> {
    /// Accounts for reading the texts among them, which a callee may do.
    pub(super) fn read(&self, meter: &Meter) -> Result<()> {
        let named = self.named.iter().map(|(_, value)| value);
        let mut texts = self.positional.iter().chain(named).filter_map(Value::as_text);
        texts.try_for_each(|text| meter.read(text.len()))
    }

    /// The arguments by the names of the parameters of `callee`; undefined where one is not given.
    pub(super) fn take<const N: usize>(&self, callee: &str, names: [&str; N]) -> Result<[Value<'a>; N]> {
        let mut values = [const { Value::Undefined }; N];
        if self.positional.len() > N {
            return fail!("'{callee}' takes at most {N} arguments");
        }
        values[..self.positional.len()].clone_from_slice(&self.positional);
        for (name, value) in &self.named {
            match names.iter().position(|known| known == name) {
                Some(index) if index >= self.positional.len() => values[index] = value.clone(),
                _ => return fail!("'{callee}' does not take the argument '{name}'"),
            }
        }
        Ok(values)
    }
}

impl Value<'_> {
    /// An integer argument; `default` if it is missing.
    pub(super) fn int_or(&self, default: i128) -> Result<i128> {
        match self {
            Self::Undefined => Ok(default),
            _ => {
                self.as_int().ok_or_else(|| TemplateError::new(format!("{} is not an int", self.type_name())))
            }
        }
    }

    /// A size or a count: negative ones are zero.
    pub(super) fn count_or(&self, default: usize) -> Result<usize> {
        Ok(usize::try_from(self.int_or(default as i128)?.max(0)).unwrap_or(usize::MAX))
    }

    /// A text argument; `default` if it is missing.
    pub(super) fn text_or<'s>(&'s self, default: &'s str) -> Result<&'s str> {
        match self {
            Self::Undefined => Ok(default),
            _ => self
                .as_text()
                .ok_or_else(|| TemplateError::new(format!("{} is not a string", self.type_name()))),
        }
    }

    /// The argument, if it is given and not none.
    pub(super) fn given(&self) -> Option<&Self> {
        (!matches!(self, Self::Undefined | Self::None)).then_some(self)
    }
}
