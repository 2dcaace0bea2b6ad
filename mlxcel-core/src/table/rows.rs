//! The rows of a step, until each has its result.

use std::ops::{Index, IndexMut};

use crate::error::{Error, ErrorKind, Result};
use crate::pooling::HiddenPool;
use crate::sequence::SequenceId;
use crate::step::{Control, Row, RowResult, StepOutput};
use crate::token::TokenId;
use crate::want::{Answer, Want};

const STEP: &str = "step";

/// For engines: the rows of a running step. See [`SequenceTable`](crate::SequenceTable).
#[derive(Debug)]
pub struct StepRows<'r, W = ()> {
    rows: Vec<StepRow<'r, W>>,
}

impl<'r, W: Default> StepRows<'r, W> {
    /// Rows of which those that were refused have their answer.
    pub(super) fn new(rows: &[Row<'r>], checked: Vec<Result<()>>) -> Self {
        let begin = |(row, checked): (&Row<'r>, Result<()>)| StepRow {
            row: *row,
            fed: 0,
            gathered: None,
            hidden: HiddenPool::of(&row.want),
            states: Vec::new(),
            answer: checked.err().map(Err),
            progress: W::default(),
        };
        Self { rows: rows.iter().zip(checked).map(begin).collect() }
    }
}

impl<'r, W> StepRows<'r, W> {
    /// Whether rows are waiting for another pass. First applies cancellation, of the step and of single rows.
    /// Call it before every pass.
    pub fn wait(&mut self, control: &Control<'_>) -> bool {
        if !self.rows.iter().any(StepRow::is_waiting) {
            return false;
        }
        if let Err(error) = control.check(STEP) {
            self.fail(&error);
            return false;
        }
        for row in self.rows.iter_mut().filter(|row| row.is_waiting()) {
            if let Err(error) = row.row.check(STEP) {
                row.fail(error);
            }
        }
        self.rows.iter().any(StepRow::is_waiting)
    }

    /// Fails all waiting rows.
    pub fn fail(&mut self, error: &Error) {
        self.rows.iter_mut().for_each(|row| row.fail(error.clone()));
    }

    /// All rows, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, StepRow<'r, W>> {
        self.rows.iter()
    }

    /// All rows, in order.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, StepRow<'r, W>> {
        self.rows.iter_mut()
    }

    /// Ends the step: writes the results to `out`, in the rows' order.
    pub fn finish(self, out: &mut StepOutput) {
        for row in self.rows {
            let answer = row
                .answer
                .unwrap_or_else(|| Err(Error::new(ErrorKind::Internal, STEP, "a row has no result")));
            let has_states = row.row.want.states && answer.is_ok();
            out.push(answer);
            if has_states {
                out.set_states(row.states);
            }
        }
    }
}

impl<'r, W> Index<usize> for StepRows<'r, W> {
    type Output = StepRow<'r, W>;

    fn index(&self, index: usize) -> &Self::Output {
        &self.rows[index]
    }
}

impl<W> IndexMut<usize> for StepRows<'_, W> {
    fn index_mut(&mut self, index: usize) -> &mut Self::Output {
        &mut self.rows[index]
    }
}

/// For engines: a row of a running step.
#[derive(Debug)]
pub struct StepRow<'r, W = ()> {
    row: Row<'r>,
    /// How many of its tokens have been fed.
    fed: usize,
    /// The answers so far; none for a row that wants hidden states.
    gathered: Option<RowResult>,
    /// The hidden states so far.
    hidden: Option<HiddenPool>,
    /// The states of the tokens fed so far, if the row wants them.
    states: Vec<f32>,
    answer: Option<Result<RowResult>>,
    /// The engine's own progress with this row.
    pub progress: W,
}

impl<'r, W> StepRow<'r, W> {
    /// The sequence that its tokens are appended to.
    pub fn sequence(&self) -> SequenceId {
        self.row.sequence
    }

    /// The result wanted after them.
    pub fn want(&self) -> Want<'r> {
        self.row.want
    }

    /// Whether it has no result yet.
    pub fn is_waiting(&self) -> bool {
        self.answer.is_none()
    }

    /// How many tokens are left to feed; 0 once there is a result.
    pub fn remaining(&self) -> usize {
        if self.is_waiting() { self.row.tokens.len() - self.fed } else { 0 }
    }

    /// The next `count` tokens, or as many as are left.
    pub fn next(&self, count: usize) -> &'r [TokenId] {
        let left = self.row.tokens.get(self.fed..).unwrap_or_default();
        left.get(..count).unwrap_or(left)
    }

    /// The types of the next `count` tokens, or of as many as are left; empty if all are 0.
    pub fn next_types(&self, count: usize) -> &'r [u8] {
        let left = self.row.token_types.get(self.fed..).unwrap_or_default();
        left.get(..count).unwrap_or(left)
    }

    /// The states that the row brings for the next `count` tokens; empty if it brings none.
    pub fn next_states(&self, count: usize) -> &'r [f32] {
        let width = self.row.states.len() / self.row.tokens.len().max(1);
        let left = self.row.states.get(self.fed * width..).unwrap_or_default();
        left.get(..count * width).unwrap_or(left)
    }

    /// Whether the next `count` tokens are its last.
    pub fn ends_with(&self, count: usize) -> bool {
        self.fed + count >= self.row.tokens.len()
    }

    /// The token after the next `count`, if the row has it. Its log probability is part of
    /// [`Answer::Likelihoods`](crate::Answer::Likelihoods).
    pub fn following(&self, count: usize) -> Option<TokenId> {
        self.row.tokens.get(self.fed + count).copied()
    }

    /// How many of the next `count` tokens, counted from the end, need an answer; see [`Want::within`].
    pub fn wanted(&self, count: usize) -> usize {
        self.row.want.within(self.row.tokens.len(), self.fed..self.fed + count)
    }

    /// The row's tokens before the `index`th [wanted](Self::wanted) result of the next `count` tokens.
    /// Penalties and sampling of that result see them after the tokens of the sequence.
    pub fn next_before(&self, count: usize, index: usize) -> &'r [TokenId] {
        let next = self.next(count);
        let unwanted = next.len().saturating_sub(self.wanted(count));
        next.get(..unwanted + index + 1).unwrap_or(next)
    }

    /// How many of the tokens left to feed are draft tokens, while a token before them is also left. The
    /// tokens before them are prefill; draft tokens are computed as if fed one by one.
    pub fn drafts_left(&self) -> usize {
        self.row.want.drafts().map_or(0, |drafts| drafts.min(self.remaining().saturating_sub(1)))
    }

    /// The position of its first draft token, if it has any to verify; `held` is the number of tokens that
    /// its sequence holds.
    ///
    /// The sequence can be [rewound](crate::InferenceSession::rewind) to no place in front of it. So a
    /// session that cannot rewind otherwise keeps what it needs from before the pass that has this position.
    pub fn first_draft(&self, held: usize) -> Option<usize> {
        self.row.want.drafts().map(|drafts| (held + self.remaining()).saturating_sub(drafts))
    }

    /// How many answers it has.
    pub fn answered(&self) -> usize {
        match &self.gathered {
            Some(RowResult::Tokens(tokens)) => tokens.len(),
            Some(RowResult::Logits(logits)) => logits.len(),
            Some(RowResult::Likelihoods(positions)) => positions.len(),
            _ => 0,
        }
    }

    /// Adds hidden states of the next `count` tokens: for [`Answer::Hidden`](crate::Answer::Hidden) their
    /// sum, or the last of them for [`Positions::Last`](crate::Positions::Last), the first for
    /// [`Positions::First`](crate::Positions::First); all of them for
    /// [`Answer::EachHidden`](crate::Answer::EachHidden). Call it before [`absorb`](Self::absorb).
    pub fn add_hidden(&mut self, sum: &[f32], count: usize) {
        if let Some(pool) = &mut self.hidden {
            pool.add_sum(sum, count);
        }
    }

    /// Adds the hidden states of the next `count` tokens, `[count, hidden]`, if the row
    /// [wants](Want::states) them. Call it before [`absorb`](Self::absorb).
    pub fn add_states(&mut self, states: &[f32]) {
        if self.row.want.states {
            self.states.extend_from_slice(states);
        }
    }

    /// Adds the result of a pass over the next `count` tokens: the answers at the [wanted](Self::wanted) ones
    /// of them, [`RowResult::Extended`] if there are none. For hidden states, pass them to
    /// [`add_hidden`](Self::add_hidden) and [`RowResult::Extended`] here. An error becomes the row's
    /// result.
    ///
    /// A result of the wrong kind or number becomes [`ErrorKind::Internal`].
    pub fn absorb(&mut self, count: usize, result: Result<RowResult>) {
        let (last, wanted) = (self.ends_with(count), self.wanted(count));
        self.fed = self.row.tokens.len().min(self.fed + count);
        if let Err(error) = result.and_then(|result| self.gather(wanted, result)) {
            self.answer = Some(Err(error));
        } else if last {
            self.answer = Some(match (self.gathered.take(), self.hidden.take()) {
                (_, Some(pool)) => pool.finish(STEP).map(RowResult::Hidden),
                (Some(answers), None) => Ok(answers),
                (None, None) => Ok(RowResult::Extended),
            });
        }
    }

    /// Adds `wanted` answers.
    fn gather(&mut self, wanted: usize, result: RowResult) -> Result<()> {
        let asks = |answers: usize, is_kind: bool| answers == wanted && is_kind;
        let answer = self.row.want.answer;
        let is_right = match &result {
            RowResult::Extended if self.hidden.is_some() => return Ok(()),
            RowResult::Extended => wanted == 0,
            RowResult::Tokens(tokens) => asks(tokens.len(), matches!(answer, Answer::Token { .. })),
            RowResult::Logits(logits) => asks(logits.len(), matches!(answer, Answer::Logits)),
            RowResult::Likelihoods(positions) => {
                asks(positions.len(), matches!(answer, Answer::Likelihoods { .. }))
            }
            RowResult::Hidden(_) => false,
        };
        if !is_right {
            return Err(Error::new(ErrorKind::Internal, STEP, "a row got a result of the wrong kind"));
        }
        match (&mut self.gathered, result) {
            (_, RowResult::Extended) => {}
            (Some(RowResult::Tokens(all)), RowResult::Tokens(more)) => all.extend(more),
            (Some(RowResult::Logits(all)), RowResult::Logits(more)) => all.extend(more),
            (Some(RowResult::Likelihoods(all)), RowResult::Likelihoods(more)) => all.extend(more),
            (gathered, result) => *gathered = Some(result),
        }
        Ok(())
    }

    /// Whether the error comes from the computation, not from the request.
    pub(super) fn is_fault(&self) -> bool {
        matches!(&self.answer, Some(Err(error)) if error.kind() == ErrorKind::Device)
    }

    /// Fails the row, unless it has a result; its sequence is unchanged.
    pub fn fail(&mut self, error: Error) {
        self.answer.get_or_insert(Err(error));
    }
}
