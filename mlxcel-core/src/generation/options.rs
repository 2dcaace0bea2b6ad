//! Options, finish reason and result of a generation.

use std::time::Instant;

use crate::cancel::CancelToken;
use crate::token::TokenId;

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FinishReason {
    /// The model generated a stop token.
    Stop,
    /// The text reached a stop string.
    StopString,
    /// The token limit was reached, or the sequence is full.
    Length,
    /// The time limit has passed.
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

/// Limits of a generation, and what to report for each token.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GenerateOptions {
    /// The maximum number of generated tokens.
    pub max_tokens: usize,
    /// The tokens that end the text; they are not part of it.
    pub stop_tokens: Vec<TokenId>,
    /// Cancels the generation at the next token or chunk.
    pub cancel: Option<CancelToken>,
    /// When the generation ends with [`FinishReason::TimeLimit`], at the next token or chunk.
    pub deadline: Option<Instant>,
    /// How many of the most likely tokens are reported with each token; at most
    /// [`Capabilities::top_logprobs`](crate::Capabilities::top_logprobs) if the engine samples.
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

    /// Sets the cancel token.
    #[must_use]
    pub fn with_cancel(mut self, cancel: CancelToken) -> Self {
        self.cancel = Some(cancel);
        self
    }

    /// Sets the deadline.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Sets how many of the most likely tokens are reported with each token.
    #[must_use]
    pub fn with_top(mut self, top: u16) -> Self {
        self.top = top;
        self
    }
}

/// The result of a generation.
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
