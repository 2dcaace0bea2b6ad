//! The rows of a step, followed until each has its answer.

use mlxcel_core::{Error, ErrorKind, PositionResult, Result, Row, RowResult, TokenId, Want};

use crate::plan::Pending;
use crate::results;

/// A row on its way through a step.
pub(super) struct Work<'a> {
    pub(super) row: Row<'a>,
    /// Tokens in front of the row's that its sequence holds and its states do not.
    pub(super) again: Vec<TokenId>,
    /// How many tokens the sequence holds after the step.
    pub(super) length: usize,
    /// How many have been fed, of those in front and the row's own.
    fed: usize,
    /// What [`Want::EveryPosition`] has gathered.
    positions: Vec<PositionResult>,
    /// The answer, once there is one.
    pub(super) answer: Option<Result<RowResult>>,
}

impl<'a> Work<'a> {
    pub(super) fn new(row: Row<'a>, refused: Result<()>) -> Self {
        let answer = refused.err().map(Err);
        Self { row, again: Vec::new(), length: 0, fed: 0, positions: Vec::new(), answer }
    }

    /// What is left to feed; nothing once there is an answer.
    pub(super) fn pending(&self) -> Pending {
        let remaining = if self.answer.is_some() { 0 } else { self.total() - self.fed };
        Pending { remaining, every: matches!(self.row.want, Want::EveryPosition { .. }) }
    }

    /// The next `count` tokens to feed: those in front of the row's own, and these.
    pub(super) fn next_tokens(&self, count: usize) -> (&[TokenId], &'a [TokenId]) {
        let before = self.again.len();
        let [start, end] = [self.fed, self.fed + count];
        let own = start.saturating_sub(before)..end.saturating_sub(before);
        (&self.again[start.min(before)..end.min(before)], &self.row.tokens[own])
    }

    fn total(&self) -> usize {
        self.again.len() + self.row.tokens.len()
    }

    /// Which of a pass's output rows this row needs the logits of, if it feeds the next `tokens` there and its outputs are
    /// `outputs`: none of tokens in front of its own.
    pub(super) fn wanted_logits(
        &self,
        tokens: usize,
        outputs: std::ops::Range<usize>,
    ) -> std::ops::Range<usize> {
        let none = outputs.end..outputs.end;
        let finished = self.fed + tokens == self.total();
        match self.row.want {
            Want::EveryPosition { .. } => {
                outputs.end - self.next_tokens(tokens).1.len().min(outputs.len())..outputs.end
            }
            Want::Logits if finished => outputs.end - 1..outputs.end,
            Want::Next { mask, top, .. } if finished && (mask.is_some() || top > 0) => {
                outputs.end - 1..outputs.end
            }
            _ => none,
        }
    }

    /// Takes in what a pass that fed `tokens` gave: the most likely token after the last of them, and the logits asked for by
    /// [`wanted_logits`](Self::wanted_logits).
    pub(super) fn absorb(&mut self, tokens: usize, best: (TokenId, f32), logits: Vec<Vec<f32>>) {
        if let Want::EveryPosition { top } = self.row.want {
            for logits in &logits {
                let following = self.row.tokens.get(self.positions.len() + 1).copied();
                match results::position(logits, following, top) {
                    Ok(position) => self.positions.push(position),
                    Err(error) => return self.answer = Some(Err(error)),
                }
            }
        }
        self.fed += tokens;
        if self.fed < self.total() {
            return;
        }
        let last = logits.into_iter().next_back();
        self.answer = Some(match (self.row.want, last) {
            (Want::Nothing, _) => Ok(RowResult::Extended),
            (Want::Logits, Some(logits)) => results::check(&logits).map(|()| RowResult::Logits(logits)),
            (Want::Next { mask, top, .. }, Some(logits)) => {
                results::choose(&logits, mask, top).map(RowResult::Token)
            }
            (Want::Next { .. }, None) => results::chosen(best).map(RowResult::Token),
            (Want::EveryPosition { .. }, _) => Ok(RowResult::Positions(std::mem::take(&mut self.positions))),
            _ => Err(Error::new(ErrorKind::Internal, "step", "a row's logits were not read")),
        });
    }
}
