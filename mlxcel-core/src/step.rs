//! What goes into a step and what comes out of it.

use std::time::Instant;

use crate::{CancelToken, Error, ErrorKind, Pooling, Result, SamplingPlan, SequenceId, TokenId, TokenMask};

/// One row of a step: the next tokens of one sequence, and what is wanted after them.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Row<'a> {
    /// The sequence that the tokens are appended to; at most one row of a step may name it.
    pub sequence: SequenceId,
    /// The tokens: a whole prompt, a chunk of one, or the one that was generated last. At least one.
    pub tokens: &'a [TokenId],
    /// What the caller wants to know after them.
    pub want: Want<'a>,
    /// Stops this row at the next chunk boundary, and no other: it answers [`ErrorKind::Cancelled`], and its sequence stands
    /// where the last whole chunk left it.
    pub cancel: Option<&'a CancelToken>,
}

impl<'a> Row<'a> {
    /// A row that asks for `want` after its tokens.
    pub fn new(sequence: SequenceId, tokens: &'a [TokenId], want: Want<'a>) -> Self {
        Self { sequence, tokens, want, cancel: None }
    }

    /// A row that only extends the sequence.
    pub fn extend(sequence: SequenceId, tokens: &'a [TokenId]) -> Self {
        Self::new(sequence, tokens, Want::Nothing)
    }

    /// A row that asks for the next token by `plan`.
    pub fn next(sequence: SequenceId, tokens: &'a [TokenId], plan: &'a SamplingPlan) -> Self {
        Self::new(sequence, tokens, Want::Next { plan, mask: None, top: 0 })
    }

    /// A row whose last `drafts` tokens are guesses, which asks for the tokens that `plan` chooses instead of each, and after them.
    pub fn verify(
        sequence: SequenceId,
        tokens: &'a [TokenId],
        plan: &'a SamplingPlan,
        drafts: usize,
    ) -> Self {
        Self::new(sequence, tokens, Want::Verify { plan, masks: &[], top: 0, drafts })
    }

    /// A row that asks for the logits after the last token.
    pub fn logits(sequence: SequenceId, tokens: &'a [TokenId]) -> Self {
        Self::new(sequence, tokens, Want::Logits)
    }

    /// Sets what stops this row.
    #[must_use]
    pub fn with_cancel(mut self, cancel: &'a CancelToken) -> Self {
        self.cancel = Some(cancel);
        self
    }

    /// For engines: an [`ErrorKind::Cancelled`] if somebody has asked to stop this row.
    ///
    /// # Errors
    ///
    /// That one.
    pub fn check(&self, operation: &'static str) -> Result<()> {
        check_cancelled(self.cancel, operation)
    }

    /// A row that asks for the hidden states of its tokens, pooled.
    pub fn hidden(sequence: SequenceId, tokens: &'a [TokenId], pooling: Pooling) -> Self {
        Self::new(sequence, tokens, Want::Hidden { pooling })
    }
}

/// What a [`Row`] asks for.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Want<'a> {
    /// Nothing: the tokens are a part of a prompt.
    Nothing,
    /// The token that follows, chosen by the engine, and its log probability.
    Next {
        /// How to choose; its place must be the device.
        plan: &'a SamplingPlan,
        /// The tokens that may be chosen; needs [`Capabilities::token_masks`](crate::Capabilities::token_masks).
        mask: Option<&'a TokenMask>,
        /// How many most likely tokens to report too, at most
        /// [`Capabilities::top_logprobs`](crate::Capabilities::top_logprobs).
        top: u16,
    },
    /// The logits after the last token; needs [`Capabilities::logits`](crate::Capabilities::logits).
    Logits,
    /// What the model made of each token of the row: for scoring a text, or verifying drafted tokens; needs
    /// [`Capabilities::every_position`](crate::Capabilities::every_position).
    EveryPosition {
        /// How many most likely tokens to report at each position.
        top: u16,
    },
    /// The tokens that follow each of the row's last `drafts + 1` tokens, chosen by the engine: what [`Next`](Self::Next) says
    /// after each of them, as if they had been fed one by one. So guesses of the coming tokens are verified in one pass: the first of
    /// the last `drafts` tokens is right where it equals the first answer, and so on. The sequence then holds all of the row's tokens;
    /// those that were wrong are for the caller to [rewind](crate::InferenceSession::rewind). Needs
    /// [`Capabilities::verification`](crate::Capabilities::verification).
    Verify {
        /// How to choose; its place must be the device. Draws are of each answer's own position, and penalties read the tokens in
        /// front of it, guesses included.
        plan: &'a SamplingPlan,
        /// The tokens that may be chosen, for each answer; none for all. Needs
        /// [`Capabilities::token_masks`](crate::Capabilities::token_masks).
        masks: &'a [TokenMask],
        /// How many of the most likely tokens to report with each answer.
        top: u16,
        /// How many of the row's last tokens are guesses: less than it has tokens.
        drafts: usize,
    },
    /// The logits after each of the row's last `drafts + 1` tokens: [`Verify`](Self::Verify) for a caller who chooses himself. Needs
    /// [`Capabilities::verification`](crate::Capabilities::verification) and [`Capabilities::logits`](crate::Capabilities::logits).
    VerifyLogits {
        /// How many of the row's last tokens are guesses: less than it has tokens.
        drafts: usize,
    },
    /// The hidden states of the row's tokens after the last norm, pooled to one vector: an embedding of a text; needs
    /// [`Capabilities::hidden_states`](crate::Capabilities::hidden_states).
    ///
    /// As with every position, what a token's state is depends on those before it alone.
    Hidden {
        /// Which states, and how.
        pooling: Pooling,
    },
}

impl Want<'_> {
    /// How many of a row's last tokens are guesses to verify; none where nothing is verified.
    pub fn drafts(&self) -> Option<usize> {
        match self {
            Self::Verify { drafts, .. } | Self::VerifyLogits { drafts } => Some(*drafts),
            _ => None,
        }
    }
}

/// What steers a step besides its rows.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Control<'a> {
    /// Stops the step at the next chunk boundary. Rows that were not done answer
    /// [`ErrorKind::Cancelled`]; their sequences stand where the last whole chunk left them.
    pub cancel: Option<&'a CancelToken>,
    /// When the step stops in the same way.
    pub deadline: Option<Instant>,
}

impl<'a> Control<'a> {
    /// A control that stops at `cancel`.
    pub fn cancelled_by(cancel: &'a CancelToken) -> Self {
        Self { cancel: Some(cancel), deadline: None }
    }

    /// Sets when the step stops.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// An [`ErrorKind::Cancelled`] if somebody has asked to stop `operation`, or its time is over.
    pub fn check(&self, operation: &'static str) -> Result<()> {
        check_cancelled(self.cancel, operation)?;
        match self.deadline {
            Some(deadline) if Instant::now() >= deadline => Err(cancelled(operation, "its time is over")),
            _ => Ok(()),
        }
    }
}

fn cancelled(operation: &'static str, message: &'static str) -> Error {
    Error::new(ErrorKind::Cancelled, operation, message)
}

fn check_cancelled(cancel: Option<&CancelToken>, operation: &'static str) -> Result<()> {
    match cancel {
        Some(cancel) if cancel.is_cancelled() => Err(cancelled(operation, "it was cancelled")),
        _ => Ok(()),
    }
}

/// A token and its natural log probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: TokenId,
    /// Its natural log probability under the model's own distribution (before temperature and filters).
    pub logprob: f32,
}

/// A token that the engine chose.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SampledToken {
    /// The token.
    pub token: TokenId,
    /// Its natural log probability under the model's own distribution (before temperature and filters).
    pub logprob: f32,
    /// The most likely tokens, most likely first, as many as were asked for.
    pub top: Vec<TokenLogprob>,
    /// Its natural log probability under the distribution that it was drawn from, which penalties, temperature and filters
    /// have changed. None where the engine does not tell it.
    pub drawn_logprob: Option<f32>,
}

impl SampledToken {
    /// A token without the most likely ones beside it.
    pub fn new(token: TokenId, logprob: f32) -> Self {
        Self { token, logprob, top: Vec::new(), drawn_logprob: None }
    }

    /// Sets its log probability under the distribution that it was drawn from.
    #[must_use]
    pub fn with_drawn_logprob(mut self, logprob: f32) -> Self {
        self.drawn_logprob = Some(logprob);
        self
    }

    /// Sets the most likely tokens, most likely first.
    #[must_use]
    pub fn with_top(mut self, top: Vec<TokenLogprob>) -> Self {
        self.top = top;
        self
    }
}

/// What the model made of one position of a row.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PositionResult {
    /// The most likely token to follow this position.
    pub best: TokenLogprob,
    /// The natural log probability of the token that does follow it in the row; none at the row's last token.
    pub following: Option<f32>,
    /// The most likely tokens, most likely first, as many as were asked for.
    pub top: Vec<TokenLogprob>,
}

impl PositionResult {
    /// A result without the most likely tokens.
    pub fn new(best: TokenLogprob, following: Option<f32>) -> Self {
        Self { best, following, top: Vec::new() }
    }

    /// Sets the most likely tokens, most likely first.
    #[must_use]
    pub fn with_top(mut self, top: Vec<TokenLogprob>) -> Self {
        self.top = top;
        self
    }
}

/// What one row gave.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RowResult {
    /// The sequence was extended; answers [`Want::Nothing`].
    Extended,
    /// The next token; answers [`Want::Next`].
    Token(SampledToken),
    /// One logit for each token of the vocabulary; answers [`Want::Logits`].
    Logits(Vec<f32>),
    /// The token that follows each of the row's last tokens, guesses and the one in front of them; answers [`Want::Verify`].
    Tokens(Vec<SampledToken>),
    /// The logits after each of the row's last tokens, guesses and the one in front of them; answers [`Want::VerifyLogits`].
    LogitsEach(Vec<Vec<f32>>),
    /// One result for each token of the row; answers [`Want::EveryPosition`].
    Positions(Vec<PositionResult>),
    /// As many elements as [`Capabilities::hidden_states`](crate::Capabilities::hidden_states) says, all finite; answers
    /// [`Want::Hidden`].
    Hidden(Vec<f32>),
}

/// What a step gave, row by row; reused from step to step.
#[derive(Debug, Default)]
pub struct StepOutput {
    rows: Vec<Result<RowResult>>,
}

impl StepOutput {
    /// An empty output.
    pub fn new() -> Self {
        Self::default()
    }

    /// The result or error of each row, in the rows' order.
    pub fn rows(&self) -> &[Result<RowResult>] {
        &self.rows
    }

    /// Takes the results out.
    pub fn take(&mut self) -> Vec<Result<RowResult>> {
        std::mem::take(&mut self.rows)
    }

    /// For engines: starts a new step.
    pub fn clear(&mut self) {
        self.rows.clear();
    }

    /// For engines: adds the result of the next row.
    pub fn push(&mut self, row: Result<RowResult>) {
        self.rows.push(row);
    }

    /// The result of a step that had one row.
    pub(crate) fn take_only(&mut self, operation: &'static str) -> Result<RowResult> {
        let mut rows = self.take();
        match (rows.pop(), rows.is_empty()) {
            (Some(row), true) => row,
            _ => Err(Error::new(ErrorKind::Internal, operation, "the engine did not answer row for row")),
        }
    }
}
