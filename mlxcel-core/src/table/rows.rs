//! The rows of a step, until each has its result.

use std::ops::{Index, IndexMut};

use crate::{
    Control, Error, ErrorKind, HiddenPool, PositionResult, Result, Row, RowResult, SampledToken, SequenceId,
    StepOutput, TokenId, Want,
};

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
            positions: Vec::new(),
            tokens: Vec::new(),
            logits: Vec::new(),
            hidden: HiddenPool::of(&row.want),
            answer: checked.err().map(Err),
            work: W::default(),
        };
        Self { rows: rows.iter().zip(checked).map(begin).collect() }
    }
}

impl<'r, W> StepRows<'r, W> {
    /// Whether rows are waiting for another pass. First applies cancellation, of the step and of single rows. Call it
    /// before every pass.
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
            out.push(
                row.answer
                    .unwrap_or_else(|| Err(Error::new(ErrorKind::Internal, STEP, "a row has no result"))),
            );
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
    /// What [`Want::EveryPosition`] has gathered.
    positions: Vec<PositionResult>,
    /// What [`Want::Verify`] has gathered.
    tokens: Vec<SampledToken>,
    /// What [`Want::VerifyLogits`] has gathered.
    logits: Vec<Vec<f32>>,
    /// What [`Want::Hidden`] has gathered.
    hidden: Option<HiddenPool>,
    answer: Option<Result<RowResult>>,
    /// Data of the engine for this row.
    pub work: W,
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

    /// Whether the next `count` tokens are its last.
    pub fn ends_with(&self, count: usize) -> bool {
        self.fed + count >= self.row.tokens.len()
    }

    /// The token after the next `count`, if the row has it. Its log probability is part of [`Want::EveryPosition`].
    pub fn following(&self, count: usize) -> Option<TokenId> {
        self.row.tokens.get(self.fed + count).copied()
    }

    /// How many of the next `count` tokens, counted from the end, need a result: all of them for
    /// [`Want::EveryPosition`], the draft tokens and the one before them for [`Want::Verify`], otherwise only the row's
    /// last token, if a result is wanted.
    pub fn wanted(&self, count: usize) -> usize {
        let before = match self.row.want {
            Want::Nothing | Want::Hidden { .. } => return 0,
            Want::EveryPosition { .. } => 0,
            want => self.row.tokens.len().saturating_sub(want.drafts().unwrap_or(0) + 1),
        };
        (self.fed + count).min(self.row.tokens.len()).saturating_sub(before.max(self.fed))
    }

    /// The row's tokens before the `index`th [wanted](Self::wanted) result of the next `count` tokens. Penalties and
    /// sampling of that result see them after the tokens of the sequence.
    pub fn next_before(&self, count: usize, index: usize) -> &'r [TokenId] {
        let next = self.next(count);
        let unwanted = next.len().saturating_sub(self.wanted(count));
        next.get(..unwanted + index + 1).unwrap_or(next)
    }

    /// How many of the tokens left to feed are draft tokens, while a token before them is also left. The tokens before
    /// them are prefill; draft tokens are computed as if fed one by one.
    pub fn drafts_left(&self) -> usize {
        self.row.want.drafts().map_or(0, |drafts| drafts.min(self.remaining().saturating_sub(1)))
    }

    /// How many results of draft tokens it has.
    pub fn answered(&self) -> usize {
        self.tokens.len().max(self.logits.len())
    }

    /// Adds hidden states of the next `count` tokens, for [`Want::Hidden`]: their sum, or the last of them for
    /// [`Pooling::Last`](crate::Pooling::Last). Call it before [`absorb`](Self::absorb).
    pub fn add_hidden(&mut self, sum: &[f32], count: usize) {
        if let Some(pool) = &mut self.hidden {
            pool.add_sum(sum, count);
        }
    }

    /// Adds the result of a pass over the next `count` tokens. For [`Want::EveryPosition`] these are the results at
    /// those tokens; for [`Want::Verify`] and [`Want::VerifyLogits`] those at the [wanted](Self::wanted) ones, or
    /// [`RowResult::Extended`] if there are none; otherwise the row's result if they are its last tokens, else
    /// [`RowResult::Extended`]. For [`Want::Hidden`], pass the states to [`add_hidden`](Self::add_hidden) and
    /// [`RowResult::Extended`] here. An error becomes the row's result.
    ///
    /// A result of the wrong kind or number becomes [`ErrorKind::Internal`].
    pub fn absorb(&mut self, count: usize, result: Result<RowResult>) {
        let (last, wanted) = (self.ends_with(count), self.wanted(count));
        self.fed = self.row.tokens.len().min(self.fed + count);
        let every = matches!(self.row.want, Want::EveryPosition { .. });
        let answer = match (self.row.want, result) {
            (_, Err(error)) => Err(error),
            (Want::EveryPosition { .. }, Ok(RowResult::Positions(positions))) if positions.len() == count => {
                self.positions.extend(positions);
                if !last {
                    return;
                }
                Ok(RowResult::Positions(std::mem::take(&mut self.positions)))
            }
            (Want::Verify { .. }, Ok(RowResult::Tokens(tokens))) if tokens.len() == wanted => {
                self.tokens.extend(tokens);
                if !last {
                    return;
                }
                Ok(RowResult::Tokens(std::mem::take(&mut self.tokens)))
            }
            (Want::VerifyLogits { .. }, Ok(RowResult::LogitsEach(logits))) if logits.len() == wanted => {
                self.logits.extend(logits);
                if !last {
                    return;
                }
                Ok(RowResult::LogitsEach(std::mem::take(&mut self.logits)))
            }
            (want, Ok(RowResult::Extended)) if want.drafts().is_some() && wanted == 0 && !last => return,
            (want, Ok(RowResult::Extended)) if want.drafts().is_none() && !last && (!every || count == 0) => {
                return;
            }
            (Want::Hidden { pooling }, Ok(RowResult::Extended)) => {
                let pool = self.hidden.take().unwrap_or_else(|| HiddenPool::new(pooling));
                pool.finish(STEP).map(RowResult::Hidden)
            }
            (Want::Nothing, Ok(result @ RowResult::Extended))
            | (Want::Logits, Ok(result @ RowResult::Logits(_)))
            | (Want::Next { .. }, Ok(result @ RowResult::Token(_)))
                if last =>
            {
                Ok(result)
            }
            _ => Err(Error::new(ErrorKind::Internal, STEP, "a row got a result of the wrong kind")),
        };
        self.answer = Some(answer);
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
