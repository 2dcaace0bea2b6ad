//! Rows and results of a step.

use std::time::Instant;

use crate::cancel::CancelToken;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::SamplingPlan;
use crate::sequence::SequenceId;
use crate::token::TokenId;
use crate::want::{Pooling, Want};

/// One row of a step: the next tokens of one sequence, and the result wanted after them.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Row<'a> {
    /// The sequence that the tokens are appended to; at most one row of a step may name it.
    pub sequence: SequenceId,
    /// The tokens: a whole prompt, a chunk of it, or the last generated token. At least one.
    pub tokens: &'a [TokenId],
    /// The type of each token, such as the number of its segment in a pair of texts; empty if all are 0.
    /// Needs [`Capabilities::token_types`](crate::Capabilities::token_types).
    pub token_types: &'a [u8],
    /// What a [draft head](crate::ModelPart::DraftHead) reads beside each token: the hidden state of the
    /// token before it in the model that it drafts for, `[tokens, `[`Capabilities::input_states`]`]`. Empty
    /// for other models.
    ///
    /// [`Capabilities::input_states`]: crate::Capabilities::input_states
    pub states: &'a [f32],
    /// The result wanted after them.
    pub want: Want<'a>,
    /// Cancels only this row, at the next chunk boundary. It returns [`ErrorKind::Cancelled`], and its
    /// sequence keeps the chunks computed so far.
    pub cancel: Option<&'a CancelToken>,
}

impl<'a> Row<'a> {
    /// A row that wants `want` after its tokens.
    pub fn new(sequence: SequenceId, tokens: &'a [TokenId], want: Want<'a>) -> Self {
        Self { sequence, tokens, token_types: &[], states: &[], want, cancel: None }
    }

    /// A row that only extends the sequence.
    pub fn extend(sequence: SequenceId, tokens: &'a [TokenId]) -> Self {
        Self::new(sequence, tokens, Want::nothing())
    }

    /// A row that wants the next token, sampled by `plan`.
    pub fn next(sequence: SequenceId, tokens: &'a [TokenId], plan: &'a SamplingPlan) -> Self {
        Self::new(sequence, tokens, Want::token(plan))
    }

    /// A row whose last `drafts` tokens are draft tokens. It wants the tokens that `plan` chooses at the
    /// position of each and after the last.
    pub fn verify(
        sequence: SequenceId,
        tokens: &'a [TokenId],
        plan: &'a SamplingPlan,
        drafts: usize,
    ) -> Self {
        Self::new(sequence, tokens, Want::token(plan).with_drafts(drafts))
    }

    /// A row that wants the logits after the last token.
    pub fn logits(sequence: SequenceId, tokens: &'a [TokenId]) -> Self {
        Self::new(sequence, tokens, Want::logits())
    }

    /// A row that wants the pooled hidden states of its tokens.
    pub fn hidden(sequence: SequenceId, tokens: &'a [TokenId], pooling: Pooling) -> Self {
        Self::new(sequence, tokens, Want::hidden(pooling))
    }

    /// A row that wants the hidden state of each of its tokens.
    pub fn each_hidden(sequence: SequenceId, tokens: &'a [TokenId]) -> Self {
        Self::new(sequence, tokens, Want::each_hidden())
    }

    setters! {
        /// Sets the types of the tokens.
        with_token_types(types: &'a [u8]) => token_types = types;
        /// Sets the hidden states that a draft head reads beside the tokens.
        with_states(states: &'a [f32]) => states = states;
        /// Sets the row's cancel token.
        with_cancel(cancel: &'a CancelToken) => cancel = Some(cancel);
    }

    /// For engines: checks whether this row was cancelled.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Cancelled`].
    pub fn check(&self, operation: &'static str) -> Result<()> {
        check_cancelled(self.cancel, operation)
    }
}

/// Cancellation and deadline of a step.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Control<'a> {
    /// Cancels the step at the next chunk boundary. Rows that are not done return [`ErrorKind::Cancelled`],
    /// and their sequences keep the chunks computed so far.
    pub cancel: Option<&'a CancelToken>,
    /// When the step is cancelled in the same way.
    pub deadline: Option<Instant>,
    /// Whether the step should rather take several passes than wait for a program of all of its rows to be
    /// compiled, if the engine compiles: it is then compiled in the background for later steps.
    /// Schedulers of running requests set this. Defaults to false, which runs the fewest passes.
    pub prefer_ready: bool,
}

impl<'a> Control<'a> {
    /// A control with the cancel token `cancel`.
    pub fn cancelled_by(cancel: &'a CancelToken) -> Self {
        Self { cancel: Some(cancel), ..Self::default() }
    }

    setters! {
        /// Sets the deadline.
        with_deadline(deadline: Instant) => deadline = Some(deadline);
        /// Sets whether the step should rather take several passes than wait for a compilation.
        with_prefer_ready(prefer_ready: bool) => prefer_ready = prefer_ready;
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
    /// Its natural log probability under the distribution it was sampled from, after penalties, temperature
    /// and filters. `None` if the engine does not report it.
    pub drawn_logprob: Option<f32>,
}

impl SampledToken {
    /// A token without a list of the most likely ones.
    pub fn new(token: TokenId, logprob: f32) -> Self {
        Self { token, logprob, top: Vec::new(), drawn_logprob: None }
    }

    setters! {
        /// Sets its log probability under the distribution it was sampled from.
        with_drawn_logprob(logprob: f32) => drawn_logprob = Some(logprob);
        /// Sets the most likely tokens, most likely first.
        with_top(top: Vec<TokenLogprob>) => top = top;
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

    setters! {
        /// Sets the most likely tokens, most likely first.
        with_top(top: Vec<TokenLogprob>) => top = top;
    }
}

/// The result of a row: one entry for each of its wanted [positions](crate::Positions), in the order of the
/// tokens.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RowResult {
    /// The sequence was extended; answers [`Want::nothing`].
    Extended,
    /// The next tokens; answers [`Answer::Token`](crate::Answer::Token).
    Tokens(Vec<SampledToken>),
    /// One logit for each token of the vocabulary; answers [`Answer::Logits`](crate::Answer::Logits).
    Logits(Vec<Vec<f32>>),
    /// The scores of the row's tokens; answers [`Answer::Likelihoods`](crate::Answer::Likelihoods).
    Likelihoods(Vec<PositionResult>),
    /// The mean of the hidden states, [`Capabilities::hidden_states`](crate::Capabilities::hidden_states)
    /// finite elements; answers [`Answer::Hidden`](crate::Answer::Hidden).
    Hidden(Vec<f32>),
}

impl RowResult {
    /// The one token that a row wanted.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Internal`] if this is another result.
    pub fn into_token(self) -> Result<SampledToken> {
        let tokens = if let Self::Tokens(tokens) = self { only(tokens) } else { None };
        tokens.ok_or_else(wrong_kind)
    }

    /// The logits at the one position that a row wanted.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Internal`] if this is another result.
    pub fn into_logits(self) -> Result<Vec<f32>> {
        let logits = if let Self::Logits(logits) = self { only(logits) } else { None };
        logits.ok_or_else(wrong_kind)
    }
}

fn only<T>(mut answers: Vec<T>) -> Option<T> {
    answers.pop().filter(|_| answers.is_empty())
}

fn wrong_kind() -> Error {
    Error::new(ErrorKind::Internal, "step", "the engine returned a result of the wrong kind")
}

/// The results of a step, row by row. Reuse it for the next step.
#[derive(Debug, Default)]
pub struct StepOutput {
    rows: Vec<Result<RowResult>>,
    /// The states of the rows that wanted them.
    states: Vec<(usize, Vec<f32>)>,
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

    /// Takes out the hidden states of the tokens of a row that [wanted](crate::Want::states) them, `[tokens,
    /// `[`Capabilities::output_states`]`]`: after the last norm, as transformers' `last_hidden_state`, or
    /// those that the model's [`LoadOptions::draft_head`](crate::LoadOptions::draft_head) reads. `None` for
    /// other rows, and for rows that failed.
    ///
    /// [`Capabilities::output_states`]: crate::Capabilities::output_states
    pub fn take_states(&mut self, row: usize) -> Option<Vec<f32>> {
        let index = self.states.iter().position(|(of, _)| *of == row)?;
        Some(self.states.swap_remove(index).1)
    }

    /// For engines: starts a new step.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.states.clear();
    }

    /// For engines: adds the result of the next row.
    pub fn push(&mut self, row: Result<RowResult>) {
        self.rows.push(row);
    }

    /// For engines: sets the hidden states of the row that was added last.
    pub fn set_states(&mut self, states: Vec<f32>) {
        if let Some(row) = self.rows.len().checked_sub(1) {
            self.states.push((row, states));
        }
    }

    /// Takes out the result of a step that had one row; errors name `operation`.
    ///
    /// # Errors
    ///
    /// That of the row; [`ErrorKind::Internal`] if the engine gave another number of results.
    pub fn take_only(&mut self, operation: &'static str) -> Result<RowResult> {
        let message = "the engine did not return one result per row";
        only(self.take()).ok_or_else(|| Error::new(ErrorKind::Internal, operation, message))?
    }
}
