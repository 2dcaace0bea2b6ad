//! The rows of a step: checked before any work, followed until each has its answer.

use mlxcel_core::{
    Capabilities, Error, ErrorKind, PositionResult, Result, Row, RowResult, SampledToken, SamplingPlace,
    TokenId, Want,
};

use super::GraphSession;
use crate::executor::Executor;
use crate::plan::Pending;
use crate::results;

/// A row on its way through a step.
pub(super) struct Work<'a> {
    pub(super) row: Row<'a>,
    /// How many of its tokens have been fed.
    pub(super) fed: usize,
    /// What [`Want::EveryPosition`] has gathered.
    pub(super) positions: Vec<PositionResult>,
    /// The answer, once there is one.
    pub(super) answer: Option<Result<RowResult>>,
}

impl<'a> Work<'a> {
    pub(super) fn new(row: Row<'a>, refused: Result<()>) -> Self {
        Self { row, fed: 0, positions: Vec::new(), answer: refused.err().map(Err) }
    }

    /// What is left to feed; nothing once there is an answer.
    pub(super) fn pending(&self) -> Pending {
        let remaining = if self.answer.is_some() { 0 } else { self.row.tokens.len() - self.fed };
        Pending { remaining, every: matches!(self.row.want, Want::EveryPosition { .. }) }
    }

    /// Which of a pass's output rows this row needs the logits of, if it feeds the next `tokens` there and its outputs are
    /// `outputs`.
    pub(super) fn wanted_logits(
        &self,
        tokens: usize,
        outputs: std::ops::Range<usize>,
    ) -> std::ops::Range<usize> {
        let none = outputs.end..outputs.end;
        let finished = self.fed + tokens == self.row.tokens.len();
        match self.row.want {
            Want::EveryPosition { .. } => outputs,
            Want::Logits if finished => outputs.end - 1..outputs.end,
            Want::Next { mask, top, .. } if finished && (mask.is_some() || top > 0) => {
                outputs.end - 1..outputs.end
            }
            _ => none,
        }
    }

    /// Takes in what a pass that fed `tokens` gave: the likeliest token after the last of them, and the logits asked for by
    /// [`wanted_logits`](Self::wanted_logits).
    pub(super) fn absorb(&mut self, tokens: usize, best: (TokenId, f32), logits: Vec<Vec<f32>>) {
        if let Want::EveryPosition { top } = self.row.want {
            for (i, logits) in (self.fed..).zip(&logits) {
                self.positions.push(results::position(logits, self.row.tokens.get(i + 1).copied(), top));
            }
        }
        self.fed += tokens;
        if self.fed < self.row.tokens.len() {
            return;
        }
        let last = logits.into_iter().next_back();
        self.answer = Some(match (self.row.want, last) {
            (Want::Nothing, _) => Ok(RowResult::Extended),
            (Want::Logits, Some(logits)) => Ok(RowResult::Logits(logits)),
            (Want::Next { mask, top, .. }, Some(logits)) => {
                results::choose(&logits, mask, top).map(RowResult::Token)
            }
            (Want::Next { .. }, None) => {
                let (token, logprob) = best;
                Ok(RowResult::Token(SampledToken::new(token, logprob)))
            }
            (Want::EveryPosition { .. }, _) => Ok(RowResult::Positions(std::mem::take(&mut self.positions))),
            _ => Err(Error::new(ErrorKind::Internal, "step", "a row's logits were not read")),
        });
    }
}

impl<E: Executor> GraphSession<E> {
    /// Whether a row may run; `earlier` are the rows in front of it.
    pub(super) fn check_row(&self, row: &Row<'_>, earlier: &[Row<'_>]) -> Result<()> {
        let wrong = |message: &'static str| {
            Error::new(ErrorKind::InvalidInput, "step", message).with_context("sequence", row.sequence)
        };
        let sequence = self.healthy("step", row.sequence)?;
        if row.tokens.is_empty() {
            return Err(wrong("a row must have at least one token"));
        }
        if earlier.iter().any(|other| other.sequence == row.sequence) {
            return Err(wrong("two rows of one step name this sequence"));
        }
        let vocabulary = self.shared.info.vocabulary_size;
        if let Some(token) = row.tokens.iter().find(|&&token| token as usize >= vocabulary) {
            return Err(wrong("the token is beyond the vocabulary")
                .with_context("token", token)
                .with_context("vocabulary_size", vocabulary));
        }
        self.check_want(&row.want)?;
        if row.tokens.len() > self.capacity - sequence.position {
            return Err(Error::new(
                ErrorKind::CapacityExceeded,
                "step",
                "the tokens do not fit into the context",
            )
            .with_context("sequence", row.sequence)
            .with_context("tokens", row.tokens.len())
            .with_context("position", sequence.position)
            .with_context("capacity", self.capacity));
        }
        Ok(())
    }

    fn check_want(&self, want: &Want<'_>) -> Result<()> {
        let claimed = &self.capabilities;
        let check_top = |top: u16| Capabilities::require(top <= claimed.top_logprobs, "step", "top_logprobs");
        match want {
            Want::Nothing => Ok(()),
            Want::Logits => Capabilities::require(claimed.logits, "step", "logits"),
            Want::EveryPosition { top } => {
                Capabilities::require(claimed.every_position, "step", "every_position")?;
                check_top(*top)
            }
            Want::Next { plan, mask, top } => {
                check_top(*top)?;
                if plan.place() != SamplingPlace::Device || !plan.is_greedy() {
                    return Err(Error::unsupported(
                        "step",
                        "this engine chooses greedily; ask for logits and sample on the host",
                    )
                    .with_context("capability", "sampling")
                    .with_context("plan", plan));
                }
                let Some(mask) = mask else { return Ok(()) };
                Capabilities::require(claimed.token_masks, "step", "token_masks")?;
                let size = self.shared.info.vocabulary_size;
                if mask.vocabulary_size() == size && !mask.is_empty() {
                    return Ok(());
                }
                Err(Error::new(
                    ErrorKind::InvalidInput,
                    "step",
                    "a token mask must be made for this vocabulary and allow a token",
                )
                .with_context("field", "mask")
                .with_context("vocabulary_size", size))
            }
            _ => Err(Error::unsupported("step", "this engine does not know this kind of result")),
        }
    }
}
