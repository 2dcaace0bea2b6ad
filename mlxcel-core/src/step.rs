//! Inputs and results of a step.

use std::time::Instant;

use crate::{CancelToken, Error, ErrorKind, Pooling, Result, SamplingPlan, SequenceId, TokenId, TokenMask};

/// One row of a step: the next tokens of one sequence, and the result wanted after them.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Row<'a> {
    /// The sequence that the tokens are appended to; at most one row of a step may name it.
    pub sequence: SequenceId,
    /// The tokens: a whole prompt, a chunk of it, or the last generated token. At least one.
    pub tokens: &'a [TokenId],
    /// The result wanted after them.
    pub want: Want<'a>,
    /// Cancels only this row, at the next chunk boundary. It returns [`ErrorKind::Cancelled`], and its sequence keeps
    /// the chunks computed so far.
    pub cancel: Option<&'a CancelToken>,
}

impl<'a> Row<'a> {
    /// A row that wants `want` after its tokens.
    pub fn new(sequence: SequenceId, tokens: &'a [TokenId], want: Want<'a>) -> Self {
        Self { sequence, tokens, want, cancel: None }
    }

    /// A row that only extends the sequence.
    pub fn extend(sequence: SequenceId, tokens: &'a [TokenId]) -> Self {
        Self::new(sequence, tokens, Want::Nothing)
    }

    /// A row that wants the next token, sampled by `plan`.
    pub fn next(sequence: SequenceId, tokens: &'a [TokenId], plan: &'a SamplingPlan) -> Self {
        Self::new(sequence, tokens, Want::Next { plan, mask: None, top: 0 })
    }

    /// A row whose last `drafts` tokens are draft tokens. It wants the tokens that `plan` chooses at the position of
    /// each and after the last.
    pub fn verify(
        sequence: SequenceId,
        tokens: &'a [TokenId],
        plan: &'a SamplingPlan,
        drafts: usize,
    ) -> Self {
        Self::new(sequence, tokens, Want::Verify { plan, masks: &[], top: 0, drafts })
    }

    /// A row that wants the logits after the last token.
    pub fn logits(sequence: SequenceId, tokens: &'a [TokenId]) -> Self {
        Self::new(sequence, tokens, Want::Logits)
    }

    /// Sets the row's cancel token.
    #[must_use]
    pub fn with_cancel(mut self, cancel: &'a CancelToken) -> Self {
        self.cancel = Some(cancel);
        self
    }

    /// For engines: checks whether this row was cancelled.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Cancelled`].
    pub fn check(&self, operation: &'static str) -> Result<()> {
        check_cancelled(self.cancel, operation)
    }

    /// A row that wants the pooled hidden states of its tokens.
    pub fn hidden(sequence: SequenceId, tokens: &'a [TokenId], pooling: Pooling) -> Self {
        Self::new(sequence, tokens, Want::Hidden { pooling })
    }
}

/// The result that a [`Row`] wants.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Want<'a> {
    /// No result: the tokens are part of a prompt.
    Nothing,
    /// The next token, sampled by the engine, and its log probability.
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
    /// A result at each token of the row, to score a text; needs
    /// [`Capabilities::every_position`](crate::Capabilities::every_position).
    EveryPosition {
        /// How many most likely tokens to report at each position.
        top: u16,
    },
    /// The next token after each of the row's last `drafts + 1` tokens, as [`Next`](Self::Next) would sample them if
    /// they were fed one by one. This verifies draft tokens in one pass: the first draft token is accepted if it equals
    /// the first result, and so on. Afterwards the sequence holds all of the row's tokens; the caller
    /// [rewinds](crate::InferenceSession::rewind) the rejected ones. Needs
    /// [`Capabilities::verification`](crate::Capabilities::verification).
    Verify {
        /// How to choose; its place must be the device. Draws are of each answer's own position, and penalties read the tokens in
        /// front of it, draft tokens included.
        plan: &'a SamplingPlan,
        /// The tokens that may be chosen, for each answer; none for all. Needs
        /// [`Capabilities::token_masks`](crate::Capabilities::token_masks).
        masks: &'a [TokenMask],
        /// How many of the most likely tokens to report with each answer.
        top: u16,
        /// How many of the row's last tokens are draft tokens: less than it has tokens.
        drafts: usize,
    },
    /// The logits after each of the row's last `drafts + 1` tokens: [`Verify`](Self::Verify) with sampling on the host.
    /// Needs [`Capabilities::verification`](crate::Capabilities::verification) and
    /// [`Capabilities::logits`](crate::Capabilities::logits).
    VerifyLogits {
        /// How many of the row's last tokens are draft tokens: less than it has tokens.
        drafts: usize,
    },
    /// The hidden states of the row's tokens after the last norm, pooled to one vector, as an embedding; needs
    /// [`Capabilities::hidden_states`](crate::Capabilities::hidden_states).
    ///
    /// Attention is causal: the state of a token depends only on the tokens before it.
    Hidden {
        /// Which states, and how.
        pooling: Pooling,
    },
}

impl Want<'_> {
    /// How many of the row's last tokens are draft tokens; `None` if the row verifies nothing.
    pub fn drafts(&self) -> Option<usize> {
        match self {
            Self::Verify { drafts, .. } | Self::VerifyLogits { drafts } => Some(*drafts),
            _ => None,
        }
    }
}

/// Cancellation and deadline of a step.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Control<'a> {
    /// Cancels the step at the next chunk boundary. Rows that are not done return [`ErrorKind::Cancelled`], and their
    /// sequences keep the chunks computed so far.
    pub cancel: Option<&'a CancelToken>,
    /// When the step is cancelled in the same way.
    pub deadline: Option<Instant>,
}

impl<'a> Control<'a> {
    /// A control with the cancel token `cancel`.
    pub fn cancelled_by(cancel: &'a CancelToken) -> Self {
        Self { cancel: Some(cancel), deadline: None }
    }

    /// Sets the deadline.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Checks whether the step was cancelled or its deadline has passed; the error names `operation`.
    pub fn check(&self, operation: &'static str) -> Result<()> {
        check_cancelled(self.cancel, operation)?;
        match self.deadline {
            Some(deadline) if Instant::now() >= deadline => {
                Err(cancelled(operation, "its deadline has passed"))
            }
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

/// A sampled token.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SampledToken {
    /// The token.
    pub token: TokenId,
    /// Its natural log probability under the model's own distribution (before temperature and filters).
    pub logprob: f32,
    /// The most likely tokens, most likely first, as many as requested.
    pub top: Vec<TokenLogprob>,
    /// Its natural log probability under the distribution it was sampled from, after penalties, temperature and
    /// filters. `None` if the engine does not report it.
    pub drawn_logprob: Option<f32>,
}

impl SampledToken {
    /// A token without a list of the most likely ones.
    pub fn new(token: TokenId, logprob: f32) -> Self {
        Self { token, logprob, top: Vec::new(), drawn_logprob: None }
    }

    /// Sets its log probability under the distribution it was sampled from.
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

/// The result at one position of a row.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PositionResult {
    /// The most likely next token at this position.
    pub best: TokenLogprob,
    /// The natural log probability of the row's actual next token; `None` at the row's last token.
    pub following: Option<f32>,
    /// The most likely tokens, most likely first, as many as requested.
    pub top: Vec<TokenLogprob>,
}

impl PositionResult {
    /// A result without a list of the most likely tokens.
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

/// The result of a row.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RowResult {
    /// The sequence was extended; answers [`Want::Nothing`].
    Extended,
    /// The next token; answers [`Want::Next`].
    Token(SampledToken),
    /// One logit for each token of the vocabulary; answers [`Want::Logits`].
    Logits(Vec<f32>),
    /// The next token after each draft token and the token before the first one; answers [`Want::Verify`].
    Tokens(Vec<SampledToken>),
    /// The logits after each draft token and the token before the first one; answers [`Want::VerifyLogits`].
    LogitsEach(Vec<Vec<f32>>),
    /// One result for each token of the row; answers [`Want::EveryPosition`].
    Positions(Vec<PositionResult>),
    /// [`Capabilities::hidden_states`](crate::Capabilities::hidden_states) finite elements; answers [`Want::Hidden`].
    Hidden(Vec<f32>),
}

/// The results of a step, row by row. Reuse it for the next step.
#[derive(Debug, Default)]
pub struct StepOutput {
    rows: Vec<Result<RowResult>>,
}

impl StepOutput {
    /// An empty output.
    pub fn new() -> Self {
        Self::default()
    }

    /// The result or error of each row, in order.
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
            _ => Err(Error::new(
                ErrorKind::Internal,
                operation,
                "the engine did not return one result per row",
            )),
        }
    }
}
