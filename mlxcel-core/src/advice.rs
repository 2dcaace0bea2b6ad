//! Advice on how to handle an error.

use crate::error::{Error, ErrorKind};

named! {
    /// How to handle an [`Error`], by its kind: for programs that react without a person.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum ErrorAdvice {
        /// Change the request: another argument, option, file or engine. The same call would fail again.
        FixInput = "change the request",
        /// Make room: close or rewind a sequence, shorten the prompt, load with more capacity.
        MakeRoom = "make room",
        /// Retry later: memory, disk or a queue was full, or the operation was cancelled. The call itself is
        /// correct.
        Retry = "ask again later",
        /// Close the sequence and open another one: its state is lost. Other sequences are unaffected.
        CloseSequence = "close the sequence",
        /// Fix the machine: a tool, a permission, a disk.
        FixMachine = "fix the installation",
        /// Report it with the error's text and sources: it is a bug in this library or one of its
        /// dependencies.
        Report = "report it",
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
