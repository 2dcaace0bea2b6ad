//! The rows of a step, followed until each has its answer.

use mlxcel_core::{Error, ErrorKind, PositionResult, Result, Row, RowResult, SampledToken, TokenId, Want};

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
