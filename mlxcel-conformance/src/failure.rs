//! Failures of checks.

use std::fmt;

use mlxcel_core::{Error, ErrorKind};

/// Why a check failed: the observation, and the requirement of the contract.
#[derive(Clone, Debug)]
pub struct Failure {
    message: String,
    error: Option<Error>,
}

impl Failure {
    /// A failure with this message.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), error: None }
    }

    /// The message, including an unexpected error of the engine.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The engine's error, if an unexpected error is the failure.
    pub fn error(&self) -> Option<&Error> {
        self.error.as_ref()
    }

    /// Prepends where the failure was observed.
    #[must_use]
    pub fn during(mut self, what: impl fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.as_ref().map(|error| error as _)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { message: format!("unexpected error: {error}"), error: Some(error) }
    }
}

/// The result of a check.
pub type Outcome<T = ()> = Result<T, Failure>;

/// Fails the check with the formatted message unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($words:tt)+) => {
        // Not `if !…`: comparisons with NaN are false, so the negation would differ.
        match $condition {
            true => {}
            false => return Err($crate::Failure::new(format!($($words)+))),
        }
    };
}
pub(crate) use ensure;

/// Fails unless `result` is an error of `kind`; `what` describes the call.
pub(crate) fn refused<T: fmt::Debug>(
    result: mlxcel_core::Result<T>,
    kind: ErrorKind,
    what: impl fmt::Display,
) -> Outcome {
    match result {
        Err(error) if error.kind() == kind => Ok(()),
        Err(error) => Err(Failure {
            message: format!("{what}: expected an error of kind `{kind}`, not `{}`: {error}", error.kind()),
            error: Some(error),
        }),
        Ok(value) => Err(Failure::new(format!(
            "{what}: expected an error of kind `{kind}`, but it returned {}",
            shortened(&value)
        ))),
    }
}

/// A value's debug text, truncated if long.
fn shortened(value: &impl fmt::Debug) -> String {
    let text = format!("{value:?}");
    match text.char_indices().nth(160) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
