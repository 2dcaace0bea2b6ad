//! The decode loop, shared by all engines and crates.

mod choice;
mod drafts;
mod greedy;
mod options;
mod stream;

use std::fmt;
use std::time::Instant;

pub use choice::{LogitsSampler, SamplingContext, TokenChoice};
pub use greedy::GenerateExt;
pub use options::{FinishReason, GenerateOptions, Generated};
pub use stream::TokenStream;

use drafts::Ahead;

use crate::cancel::CancelToken;
use crate::error::{Error, ErrorKind, Result};
use crate::sampling::TokenMask;
use crate::sequence::SequenceId;
use crate::session::{InferenceSession, InferenceSessionExt};
use crate::step::{Control, Row, RowResult, SampledToken};
use crate::token::TokenId;
use crate::want::Want;

/// A generation as a state machine: decides which row to compute next, and handles its result.
///
/// It holds no session and computes nothing. The driver takes a [`row`](Self::row), runs it in a step, alone
/// or batched with rows of others, and passes the result to [`accept`](Self::accept), until
/// [`finish_reason`](Self::finish_reason) is set. [`TokenStream`] drives one; a scheduler drives many.
///
/// ```
/// use mlxcel_core::reference::ReferenceBackend;
/// use mlxcel_core::{
///     Control, GenerateOptions, Generation, Model, SamplingPlan, SessionOptions, StepOutput, TokenChoice,
/// };
///
/// let model = ReferenceBackend::new().model()?;
/// let mut session = model.open_session(&SessionOptions::default())?;
/// let (first, second) = (session.open()?, session.open()?);
/// let capacity = session.capabilities().context;
/// let start = |prompt: &[u32]| {
///     let choice = TokenChoice::Engine(SamplingPlan::greedy());
///     Generation::new(prompt, capacity, GenerateOptions::new(5), choice)
/// };
/// let (mut short, mut long) = (start(&[1, 2])?, start(&[3, 4, 5, 6, 7])?);
/// let mut out = StepOutput::new();
/// while short.finish_reason().is_none() || long.finish_reason().is_none() {
///     // At most two tokens of each a step: the long prompt is still computed while the short one decodes.
///     let rows: Vec<_> = [short.row(first, 2), long.row(second, 2)].into_iter().flatten().collect();
///     let fed: Vec<_> = rows.iter().map(|row| (row.sequence, row.tokens.len())).collect();
///     session.step(&rows, &Control::default(), &mut out)?;
///     for ((sequence, tokens), result) in fed.into_iter().zip(out.take()) {
///         let generation = if sequence == first { &mut short } else { &mut long };
///         generation.accept(tokens, result?)?;
///     }
/// }
/// assert_eq!((short.generated().len(), long.generated().len()), (5, 5));
/// # Ok::<(), mlxcel_core::Error>(())
/// ```
pub struct Generation {
    options: GenerateOptions,
    choice: TokenChoice,
    /// Earlier tokens of the sequence, the prompt, and generated tokens; all are kept because host samplers
    /// read them.
    tokens: Vec<TokenId>,
    /// How many of `tokens` were not generated here.
    prompt_length: usize,
    /// How many tokens the sequence holds, wrong draft tokens included.
    held: usize,
    /// How many of these are right: they are the first of `tokens`, and then of those that are ready.
    valid: usize,
    /// The most tokens that the sequence may hold.
    capacity: usize,
    /// The tokens that may be chosen next, and after each draft token; none for all.
    masks: Vec<TokenMask>,
    ahead: Ahead,
    /// The log probability of each generated token under the distribution that it was drawn from.
    drawn: Vec<f32>,
    finish: Option<FinishReason>,
}

impl Generation {
    /// A generation after `prompt`, in an empty sequence with a capacity of `capacity` tokens.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for an empty prompt, [`ErrorKind::CapacityExceeded`] for one that does not
    /// fit.
    pub fn new(
        prompt: &[TokenId],
        capacity: usize,
        options: GenerateOptions,
        choice: TokenChoice,
    ) -> Result<Self> {
        Self::resume(&[], prompt, capacity, options, choice)
    }

    /// As [`new`](Self::new), in a sequence that already holds the tokens of `history`.
    ///
    /// # Errors
    ///
    /// The errors of [`new`](Self::new).
    pub fn resume(
        history: &[TokenId],
        prompt: &[TokenId],
        capacity: usize,
        options: GenerateOptions,
        choice: TokenChoice,
    ) -> Result<Self> {
        if prompt.is_empty() {
            return Err(Error::new(ErrorKind::InvalidInput, "generate", "the prompt is empty"));
        }
        if prompt.len() > capacity.saturating_sub(history.len()) {
            let message = "the prompt does not fit into the context";
            return Err(Error::new(ErrorKind::CapacityExceeded, "generate", message)
                .with_context("prompt_tokens", prompt.len())
                .with_context("context", capacity)
                .with_context("used", history.len()));
        }
        let prompt_length = history.len() + prompt.len();
        let choice = match choice {
            TokenChoice::Engine(plan) => TokenChoice::Engine(plan.with_prompt_length(prompt_length)),
            host => host,
        };
        let finish = (options.max_tokens == 0).then_some(FinishReason::Length);
        Ok(Self {
            options,
            choice,
            tokens: [history, prompt].concat(),
            prompt_length,
            held: history.len(),
            valid: history.len(),
            capacity,
            masks: Vec::new(),
            ahead: Ahead::default(),
            drawn: Vec::new(),
            finish,
        })
    }

    /// The next row to compute, of at most `most` tokens: a chunk of the pending tokens, with the next token
    /// wanted after the last of them, and [draft tokens](Self::set_drafts). `None` if the generation has
    /// ended, `most` is 0, or tokens are [ready](Self::next_ready).
    pub fn row(&self, sequence: SequenceId, most: usize) -> Option<Row<'_>> {
        let pending = self.pending();
        let row = if self.ahead.drafts > 0 { &self.ahead.tokens } else { pending };
        let tokens = row.get(..most).unwrap_or(row);
        if self.finish.is_some() || tokens.is_empty() || !self.ahead.ready.is_empty() {
            return None;
        }
        let (top, drafts) = (self.options.top, tokens.len().saturating_sub(pending.len()));
        let want = match &self.choice {
            _ if tokens.len() < pending.len() => Want::nothing(),
            TokenChoice::Engine(plan) => {
                Want::token(plan).with_masks(self.masks.get(..=drafts).unwrap_or_default()).with_top(top)
            }
            TokenChoice::Host(_) => Want::logits(),
        };
        let want = if drafts > 0 { want.with_drafts(drafts) } else { want };
        Some(Row { cancel: self.options.cancel.as_ref(), ..Row::new(sequence, tokens, want) })
    }

    /// Accepts the result of a row of `fed` tokens and returns the generated token: `None` for part of a
    /// prompt, or for a stop token, which ends the generation. A row with draft tokens may yield more,
    /// which [`next_ready`](Self::next_ready) returns, and leave rejected ones in the sequence, which
    /// [`rewind`](Self::rewind) removes.
    ///
    /// # Errors
    ///
    /// The errors of [`LogitsSampler::sample`]; [`ErrorKind::Internal`] for a result that does not answer the
    /// row.
    pub fn accept(&mut self, fed: usize, result: RowResult) -> Result<Option<SampledToken>> {
        let pending = self.pending().len();
        let drafts = fed.saturating_sub(pending);
        if drafts > self.ahead.drafts {
            return Err(Error::new(ErrorKind::Internal, "generate", "more tokens were computed than wanted"));
        }
        self.held = self.computed() + fed;
        self.valid = self.held - drafts;
        if fed < pending {
            return Ok(None);
        }
        self.verify(drafts, result)?;
        Ok(self.next_ready())
    }

    /// Adds a token to the text; none for a stop token, which ends the generation.
    fn commit(&mut self, token: SampledToken) -> Option<SampledToken> {
        if self.options.stop_tokens.contains(&token.token) {
            self.end(FinishReason::Stop);
            return None;
        }
        self.tokens.push(token.token);
        self.drawn.push(token.drawn_logprob.unwrap_or(token.logprob));
        self.end_where_full();
        Some(token)
    }

    /// Appends a token without sampling, such as one that a grammar forces; the next row computes it with the
    /// pending ones. Returns false if the generation has ended.
    pub fn push(&mut self, token: TokenId) -> bool {
        if self.finish.is_some() {
            return false;
        }
        // The drafts were for this token's position.
        self.set_drafts(&[]);
        self.tokens.push(token);
        // Nothing else could have been drawn.
        self.drawn.push(0.0);
        self.end_where_full();
        true
    }

    /// Ends it where it has all tokens that it may have.
    fn end_where_full(&mut self) {
        // The last token needs no place: nothing is computed with it.
        if self.generated().len() >= self.options.max_tokens || self.tokens.len() > self.capacity {
            self.end(FinishReason::Length);
        }
    }

    /// Runs steps of `session` until `sequence` yields the next token; `None` at the end.
    ///
    /// # Errors
    ///
    /// The errors of [`InferenceSession::step`] and [`accept`](Self::accept). Cancellation is not an error.
    pub fn advance<S: InferenceSession + ?Sized>(
        &mut self,
        session: &mut S,
        sequence: SequenceId,
    ) -> Result<Option<SampledToken>> {
        while !self.poll_end() {
            let token = match self.next_ready() {
                None if self.finish.is_some() => None,
                None => self.run_row(session, sequence)?,
                token => token,
            };
            if self.finish.is_some() {
                self.rewind(session, sequence)?;
            }
            if token.is_some() {
                return Ok(token);
            }
        }
        Ok(None)
    }

    /// Runs its next row.
    fn run_row<S: InferenceSession + ?Sized>(
        &mut self,
        session: &mut S,
        sequence: SequenceId,
    ) -> Result<Option<SampledToken>> {
        self.rewind(session, sequence)?;
        let Some(row) = self.row(sequence, usize::MAX) else { return Ok(None) };
        let fed = row.tokens.len();
        let GenerateOptions { cancel, deadline, .. } = &self.options;
        let control = Control { cancel: cancel.as_ref(), deadline: *deadline, prefer_ready: false };
        match session.run_row(row, &control) {
            Err(error) if error.kind() == ErrorKind::Cancelled => {
                self.set_computed(session.state(sequence)?.position);
                // Nothing else cancels a step of ours.
                if !self.poll_end() {
                    self.end(FinishReason::Cancelled);
                }
                Ok(None)
            }
            result => {
                let token = self.accept(fed, result?)?;
                self.rewind(session, sequence)?;
                Ok(token)
            }
        }
    }

    /// Ends the generation if it was cancelled or its deadline has passed. Returns whether it has ended, for
    /// any reason.
    pub fn poll_end(&mut self) -> bool {
        if self.finish.is_none() {
            self.finish = if self.options.cancel.as_ref().is_some_and(CancelToken::is_cancelled) {
                Some(FinishReason::Cancelled)
            } else if self.options.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                Some(FinishReason::TimeLimit)
            } else {
                None
            };
        }
        self.finish.is_some()
    }

    /// Ends the generation; an earlier reason is kept.
    pub fn end(&mut self, reason: FinishReason) {
        self.finish.get_or_insert(reason);
    }

    /// Ends the generation with [`FinishReason::Stop`] as a complete text, even if it also reached its token
    /// limit.
    pub fn complete(&mut self) {
        self.finish = Some(FinishReason::Stop);
    }

    /// Sets how many of its tokens the sequence already holds: a reused prefix, or 0 to recompute. The last
    /// token is always computed, since its result is needed.
    pub fn set_computed(&mut self, tokens: usize) {
        self.held = tokens;
        self.valid = tokens.min(self.tokens.len() - 1);
        self.set_drafts(&[]);
    }

    /// How many of its tokens the sequence already holds.
    pub fn computed(&self) -> usize {
        self.valid.min(self.tokens.len())
    }

    /// The tokens that the sequence does not hold yet, including the last generated one.
    pub fn pending(&self) -> &[TokenId] {
        &self.tokens[self.computed()..]
    }

    /// Sets the mask of the next token, until it is set again.
    pub fn set_mask(&mut self, mask: Option<TokenMask>) {
        self.set_masks(mask.into_iter().collect());
    }

    /// All tokens: history, prompt and generated ones.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// How many of its tokens are history or prompt.
    pub fn prompt_length(&self) -> usize {
        self.prompt_length
    }

    /// The tokens generated so far.
    pub fn generated(&self) -> &[TokenId] {
        &self.tokens[self.prompt_length..]
    }

    /// The options.
    pub fn options(&self) -> &GenerateOptions {
        &self.options
    }

    /// Why it ended; `None` while it is running.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.finish
    }
}

impl fmt::Debug for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let choice: &dyn fmt::Debug = match &self.choice {
            TokenChoice::Engine(plan) => plan,
            TokenChoice::Host(_) => &"host",
        };
        f.debug_struct("Generation")
            .field("choice", choice)
            .field("prompt_length", &self.prompt_length)
            .field("generated", &self.generated().len())
            .field("computed", &self.computed())
            .field("finish", &self.finish)
            .finish_non_exhaustive()
    }
}
