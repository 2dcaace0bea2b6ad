//! Options, finish reason and result of a generation.

use std::time::Instant;

use crate::cancel::CancelToken;
use crate::token::TokenId;

named! {
    /// Why a generation ended.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum FinishReason {
        /// The model generated a stop token.
        Stop = "stop",
        /// The text reached a stop string.
        StopString = "stop_string",
        /// The token limit was reached, or the sequence is full.
        Length = "length",
        /// The time limit has passed.
        TimeLimit = "time_limit",
        /// A [`CancelToken`] or the caller stopped it.
        Cancelled = "cancelled",
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

    setters! {
        /// Sets the tokens that end the text.
        with_stop_tokens(tokens: impl Into<Vec<TokenId>>) => stop_tokens = tokens.into();
        /// Sets the cancel token.
        with_cancel(cancel: CancelToken) => cancel = Some(cancel);
        /// Sets the deadline.
        with_deadline(deadline: Instant) => deadline = Some(deadline);
        /// Sets how many of the most likely tokens are reported with each token.
        with_top(top: u16) => top = top;
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
