//! The error type of the contract: kind, operation, context and source.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

named! {
    /// The kind of an [`Error`]. Match on this, not on its text.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum ErrorKind {
        /// An invalid argument: an empty prompt, a token outside the vocabulary, an option out of range.
        InvalidInput = "invalid input",
        /// A folder, file, tensor, sequence or backend does not exist.
        NotFound = "not found",
        /// The content of a file or handle is invalid.
        Corrupt = "corrupt data",
        /// A grammar or JSON schema would take more time or memory than allowed; a simpler one is accepted.
        TooComplex = "too complex",
        /// The engine does not support the request for this model; see its capabilities.
        Unsupported = "unsupported",
        /// The sequence or session is full; nothing was computed.
        CapacityExceeded = "capacity exceeded",
        /// A device fault left the sequence in an unknown state; it can only be closed.
        Poisoned = "poisoned sequence",
        /// The work was cancelled by a [`CancelToken`](crate::CancelToken); the sequence is usable.
        Cancelled = "cancelled",
        /// A native tool is missing or has the wrong version.
        Toolchain = "toolchain problem",
        /// The compiler rejected a program, crashed or was killed.
        Compile = "compile failure",
        /// The device or its runtime reported a fault.
        Device = "device fault",
        /// Memory or disk space ran out.
        ResourceExhausted = "out of resources",
        /// The operating system failed to read or write.
        Io = "input or output failure",
        /// A bug in the library; please report it.
        Internal = "internal error",
    }
}

/// The error of every fallible operation of the contract.
///
/// It prints on one line as `operation: message (key: value, …)`; [`source`](StdError::source) returns the
/// underlying error (of the operating system, the compiler, the device runtime). `{:?}` shows both, so that
/// `fn main() -> Result<(), Error>` prints a readable report. [`advice`](Self::advice) says how to handle it.
/// Messages may quote untrusted files, so they are printed as [`Printable`].
///
/// ```
/// use mlxcel_core::{Error, ErrorKind};
///
/// let error = Error::new(ErrorKind::NotFound, "open checkpoint", "there is no such folder")
///     .with_context("path", "/models/none");
/// assert_eq!(error.kind(), ErrorKind::NotFound);
/// assert_eq!(error.to_string(), "open checkpoint: there is no such folder (path: /models/none)");
/// ```
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    operation: Cow<'static, str>,
    message: Cow<'static, str>,
    context: Vec<(&'static str, String)>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of `kind` in `operation` ("open checkpoint", "compile"), with what failed and how to fix it.
    pub fn new(
        kind: ErrorKind,
        operation: impl Into<Cow<'static, str>>,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self(Box::new(Inner {
            kind,
            operation: operation.into(),
            message: message.into(),
            context: Vec::new(),
            source: None,
        }))
    }

    /// Adds context that locates the failure, such as `("path", …)`, `("tensor", …)` or `("field", …)`.
    #[must_use]
    pub fn with_context(mut self, key: &'static str, value: impl fmt::Display) -> Self {
        self.0.context.push((key, value.to_string()));
        self
    }

    /// Sets the underlying error.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(Arc::from(source.into()));
        self
    }

    /// The kind of failure.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The operation that failed.
    pub fn operation(&self) -> &str {
        &self.0.operation
    }

    /// The message, without operation and context.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The value of a context key, if set.
    pub fn context(&self, key: &str) -> Option<&str> {
        self.0.context.iter().find(|(name, _)| *name == key).map(|(_, value)| value.as_str())
    }

    /// Wraps an I/O error in `operation` on `path`. A full disk and a missing file map to their own kinds.
    pub fn io(
        operation: impl Into<Cow<'static, str>>,
        path: &std::path::Path,
        source: std::io::Error,
    ) -> Self {
        use std::io::ErrorKind as Io;
        let (kind, message) = match source.kind() {
            Io::NotFound => (ErrorKind::NotFound, "the file or folder does not exist"),
            Io::PermissionDenied | Io::ReadOnlyFilesystem => (ErrorKind::Io, "permission denied"),
            Io::StorageFull | Io::QuotaExceeded => (ErrorKind::ResourceExhausted, "the disk is full"),
            Io::OutOfMemory => (ErrorKind::ResourceExhausted, "out of memory"),
            _ => (ErrorKind::Io, "the operating system reported an error"),
        };
        Self::new(kind, operation, message).with_context("path", path.display()).with_source(source)
    }

    /// For engines: the error of a row whose logits contain NaN or whose largest logit is infinite. Its
    /// sequence is poisoned, since later logits would be invalid too.
    pub fn not_a_number(operation: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Device, operation, "a logit is not a number")
    }

    /// For engines: the system is out of memory for `bytes`; of kind [`ErrorKind::ResourceExhausted`].
    pub fn out_of_memory(operation: impl Into<Cow<'static, str>>, bytes: usize) -> Self {
        Self::new(ErrorKind::ResourceExhausted, operation, "out of memory").with_context("bytes", bytes)
    }

    /// An error for an unclaimed capability.
    pub fn unsupported(operation: impl Into<Cow<'static, str>>, what: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Unsupported, operation, what)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", Printable(&self.0.operation), Printable(&self.0.message))?;
        let mut separator = " (";
        for (key, value) in &self.0.context {
            write!(f, "{separator}{key}: {}", Printable(value))?;
            separator = ", ";
        }
        if self.0.context.is_empty() { Ok(()) } else { f.write_str(")") }
    }
}

/// Untrusted text, printed safely: control characters and changes of the writing direction are escaped, and
/// text longer than [`LONGEST`](Self::LONGEST) is truncated.
///
/// ```
/// use mlxcel_core::Printable;
///
/// assert_eq!(Printable("red: \u{1b}[31m").to_string(), "red: \\u{1b}[31m");
/// assert!(Printable(&"x".repeat(1 << 20)).to_string().ends_with("… (1048576 bytes)"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Printable<'a>(pub &'a str);

impl Printable<'_> {
    /// The maximum number of characters printed.
    pub const LONGEST: usize = 2000;
}

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.0.char_indices().nth(Self::LONGEST).map(|(end, _)| end);
        let mut rest = self.0.get(..end.unwrap_or(self.0.len())).unwrap_or_default();
        while let Some((at, steering)) = rest.char_indices().find(|&(_, c)| steers(c)) {
            let (plain, from) = rest.split_at(at);
            write!(f, "{plain}{}", steering.escape_debug())?;
            rest = from.get(steering.len_utf8()..).unwrap_or_default();
        }
        f.write_str(rest)?;
        if end.is_some() { write!(f, "… ({} bytes)", self.0.len()) } else { Ok(()) }
    }
}

/// Whether a character does something else than stand there.
fn steers(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// An error and its causes on one line, separated by colons, printed safely as by [`Printable`].
///
/// ```
/// use mlxcel_core::{Error, ErrorKind, one_line};
///
/// let error = Error::new(ErrorKind::Corrupt, "open checkpoint", "it is cut").with_source("line 1\n  line 2");
/// assert_eq!(one_line(&error), "open checkpoint: it is cut: line 1 line 2");
/// ```
pub fn one_line(error: &dyn StdError) -> String {
    let mut line = joined(&error.to_string());
    let mut source = error.source();
    while let Some(cause) = source {
        line.push_str(": ");
        line.push_str(&joined(&cause.to_string()));
        source = cause.source();
    }
    line
}

/// `text` without line breaks.
fn joined(text: &str) -> String {
    Printable(&text.split_whitespace().collect::<Vec<_>>().join(" ")).to_string()
}

/// For people, since `main` prints an error so: the message and the chain of its causes. `{:#?}` shows the
/// parts.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &self.0;
        if f.alternate() {
            let context: Vec<_> =
                inner.context.iter().map(|(key, value)| (key, Printable(value).to_string())).collect();
            return f
                .debug_struct("Error")
                .field("kind", &inner.kind)
                .field("operation", &Printable(&inner.operation).to_string())
                .field("message", &Printable(&inner.message).to_string())
                .field("context", &context)
                .field("source", &inner.source)
                .finish();
        }
        write!(f, "{self}")?;
        let causes: Vec<String> =
            std::iter::successors(self.source(), |&cause| cause.source()).map(ToString::to_string).collect();
        if !causes.is_empty() {
            f.write_str("\n\nCaused by:")?;
        }
        for (number, cause) in causes.iter().enumerate() {
            for (index, line) in cause.lines().take(MOST_LINES).enumerate() {
                let number =
                    if index == 0 && causes.len() > 1 { format!("{number}: ") } else { String::new() };
                write!(f, "\n    {number}{}", Printable(line))?;
            }
            let more = cause.lines().count().saturating_sub(MOST_LINES);
            if more > 0 {
                write!(f, "\n    … ({more} lines)")?;
            }
        }
        Ok(())
    }
}

/// The most lines of a cause, such as a compiler's words, that are shown.
const MOST_LINES: usize = 40;

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_long_values_are_truncated() {
        let error = Error::new(ErrorKind::Corrupt, "read", "a\u{1b}]0;title\u{7}\n\u{9b}2J\u{202e}b \"é…\"")
            .with_context("tensor", "\r".repeat(3 << 20))
            .with_context("path", "C:\\models");
        let text = error.to_string();
        assert!(
            text.starts_with("read: a\\u{1b}]0;title\\u{7}\\n\\u{9b}2J\\u{202e}b \"é…\" (tensor: \\r\\r"),
            "{text}"
        );
        assert!(text.ends_with("… (3145728 bytes), path: C:\\models)"), "{text}");
        assert!(text.len() < 5000 && !text.contains(steers), "{text}");
        for debug in [format!("{error:?}"), format!("{error:#?}")] {
            assert!(debug.len() < 10_000 && !debug.contains('\u{1b}'), "{debug}");
        }
        // Programs still get all of it.
        assert_eq!(error.context("tensor").map(str::len), Some(3 << 20));
    }

    #[test]
    fn debug_output_is_the_message_and_its_causes() {
        let inner = std::io::Error::other("first\nsecond\u{7}");
        let middle = Error::new(ErrorKind::Io, "read", "the disk is gone").with_source(inner);
        let error = Error::new(ErrorKind::NotFound, "open", "no model").with_context("path", "/m");
        assert_eq!(format!("{error:?}"), "open: no model (path: /m)");
        let one = error.clone().with_source(std::io::Error::other("it is late"));
        assert_eq!(format!("{one:?}"), "open: no model (path: /m)\n\nCaused by:\n    it is late");
        assert_eq!(
            format!("{:?}", error.with_source(middle)),
            "open: no model (path: /m)\n\nCaused by:\n    0: read: the disk is gone\n    1: first\n    second\\u{7}"
        );
        let long = Error::new(ErrorKind::Compile, "compile", "refused").with_source("line\n".repeat(50));
        assert!(format!("{long:?}").ends_with("    line\n    … (10 lines)"));
    }
}
