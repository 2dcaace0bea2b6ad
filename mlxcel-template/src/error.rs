//! What goes wrong in a template, and where.

use std::fmt;

use mlxcel_core::Printable;

/// A result whose error is [`TemplateError`].
pub(super) type Result<T> = std::result::Result<T, TemplateError>;

/// A result that is a fault with this message, whose line is not known yet.
macro_rules! fail {
    ($($message:tt)*) => { Err($crate::error::TemplateError::new(std::fmt::format(format_args!($($message)*)))) };
}
pub(super) use fail;

/// A fault of a template, or of what it was given: a message, and the line of the template where it showed.
#[derive(Clone, Debug)]
pub struct TemplateError(Box<(u32, String)>);

impl TemplateError {
    /// A fault whose line is not known yet. The message may quote the template: it is shortened, and holds no
    /// control characters.
    pub(super) fn new(message: impl AsRef<str>) -> Self {
        Self::at(0, message)
    }

    /// A fault in `line`, which counts from one.
    pub(super) fn at(line: u32, message: impl AsRef<str>) -> Self {
        Self(Box::new((line, Printable(message.as_ref()).to_string())))
    }

    /// The fault with its line, if it had none.
    pub(super) fn or_at(mut self, line: u32) -> Self {
        if self.0.0 == 0 {
            self.0.0 = line;
        }
        self
    }
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self.0 {
            (0, ref message) => f.write_str(message),
            (line, ref message) => write!(f, "line {line}: {message}"),
        }
    }
}

impl std::error::Error for TemplateError {}
