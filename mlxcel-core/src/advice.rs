//! Advice on how to handle an error.

use std::fmt;

use crate::error::{Error, ErrorKind};

/// How to handle an [`Error`], by its kind: for programs that react without a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorAdvice {
    /// Change the request: another argument, option, file or engine. The same call would fail again.
    FixInput,
    /// Make room: close or rewind a sequence, shorten the prompt, load with more capacity.
    MakeRoom,
    /// Retry later: memory, disk or a queue was full, or the operation was cancelled. The call itself is
    /// correct.
    Retry,
    /// Close the sequence and open another one: its state is lost. Other sequences are unaffected.
    CloseSequence,
    /// Fix the machine: a tool, a permission, a disk.
    FixMachine,
    /// Report it with the error's text and sources: it is a bug in this library or one of its dependencies.
    Report,
}

impl ErrorAdvice {
    /// The advice in words, such as `close the sequence`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::FixInput => "change the request",
            Self::MakeRoom => "make room",
            Self::Retry => "ask again later",
            Self::CloseSequence => "close the sequence",
            Self::FixMachine => "fix the installation",
            Self::Report => "report it",
        }
    }
}

impl fmt::Display for ErrorAdvice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl ErrorKind {
    /// How to handle an error of this kind.
    ///
    /// ```
    /// use mlxcel_core::{ErrorAdvice, ErrorKind};
    ///
    /// assert_eq!(ErrorKind::Poisoned.advice(), ErrorAdvice::CloseSequence);
    /// assert_eq!(ErrorKind::ResourceExhausted.advice().to_string(), "ask again later");
    /// ```
    pub fn advice(self) -> ErrorAdvice {
        match self {
            Self::InvalidInput | Self::NotFound | Self::Corrupt | Self::TooComplex | Self::Unsupported => {
                ErrorAdvice::FixInput
            }
            Self::CapacityExceeded => ErrorAdvice::MakeRoom,
            Self::Cancelled | Self::ResourceExhausted => ErrorAdvice::Retry,
            Self::Poisoned | Self::Device => ErrorAdvice::CloseSequence,
            Self::Toolchain | Self::Io => ErrorAdvice::FixMachine,
            Self::Compile | Self::Internal => ErrorAdvice::Report,
        }
    }
}

impl Error {
    /// How to handle it; see [`ErrorKind::advice`].
    pub fn advice(&self) -> ErrorAdvice {
        self.kind().advice()
    }

    /// Whether the same call may succeed later: its advice is [`ErrorAdvice::Retry`].
    pub fn is_retryable(&self) -> bool {
        self.advice() == ErrorAdvice::Retry
    }
}
