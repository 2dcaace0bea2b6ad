//! How far a generation goes, why it ended, and what came of it.

use std::time::Instant;

use crate::{CancelToken, TokenId};

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FinishReason {
    /// The model chose a stop token.
    Stop,
    /// The text came to a stop string.
    StopString,
    /// As many tokens as were asked for are there, or the sequence is full.
    Length,
    /// The time that it was given is over.
    TimeLimit,
    /// A [`CancelToken`] or the caller stopped it.
    Cancelled,
}

impl FinishReason {
    /// The lower-case name: `stop`, `stop_string`, `length`, `time_limit`, `cancelled`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::StopString => "stop_string",
            Self::Length => "length",
            Self::TimeLimit => "time_limit",
            Self::Cancelled => "cancelled",
        }
    }
}

/// How far to generate, and what to tell of each token.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GenerateOptions {
    /// The most tokens to generate.
    pub max_tokens: usize,
    /// The tokens that end the text; they are not part of it.
    pub stop_tokens: Vec<TokenId>,
    /// Stops the generation at the next token or chunk.
    pub cancel: Option<CancelToken>,
    /// When the generation stops at the next token or chunk, as [`FinishReason::TimeLimit`].
    pub deadline: Option<Instant>,
    /// How many of the most likely tokens are reported beside each one, at most
    /// [`Capabilities::top_logprobs`](crate::Capabilities::top_logprobs) where the engine chooses.
    pub top: u16,
}

impl GenerateOptions {
    /// At most `max_tokens`, with no stop token.
    pub fn new(max_tokens: usize) -> Self {
        Self { max_tokens, stop_tokens: Vec::new(), cancel: None, deadline: None, top: 0 }
    }

    /// Sets the tokens that end the text.
    #[must_use]
    pub fn with_stop_tokens(mut self, tokens: impl Into<Vec<TokenId>>) -> Self {
        self.stop_tokens = tokens.into();
        self
    }

    /// Sets what stops the generation.
    #[must_use]
    pub fn with_cancel(mut self, cancel: CancelToken) -> Self {
        self.cancel = Some(cancel);
        self
    }

    /// Sets when the generation stops.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Sets how many of the most likely tokens are reported beside each one.
    #[must_use]
    pub fn with_top(mut self, top: u16) -> Self {
        self.top = top;
        self
    }
}

/// What was generated.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Generated {
    /// The tokens after the prompt, without the stop token.
    pub tokens: Vec<TokenId>,
    /// The natural log probability of each.
    pub logprobs: Vec<f32>,
    /// Why it ended.
    pub finish_reason: FinishReason,
}
