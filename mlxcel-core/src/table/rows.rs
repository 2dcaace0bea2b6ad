//! The rows of a step, followed until each has its answer.

use std::ops::{Index, IndexMut};

use crate::{
    Control, Error, ErrorKind, HiddenPool, PositionResult, Result, Row, RowResult, SampledToken, SequenceId,
    StepOutput, TokenId, Want,
};

const STEP: &str = "step";

/// For engines: the rows of a step on their way to an answer each. See [`SequenceTable`](crate::SequenceTable).
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
    /// Whether rows wait for another pass. Looks at cancellation first: of the step, which answers all rows that wait, and of each
    /// of them. To be called before every pass.
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

    /// Answers all rows that wait with an error.
    pub fn fail(&mut self, error: &Error) {
        self.rows.iter_mut().for_each(|row| row.fail(error.clone()));
    }

    /// All rows, in their order.
    pub fn iter(&self) -> std::slice::Iter<'_, StepRow<'r, W>> {
        self.rows.iter()
    }

    /// All rows, in their order.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, StepRow<'r, W>> {
        self.rows.iter_mut()
    }

    /// Ends the step: puts the answers into `out`, in the rows' order.
    pub fn finish(self, out: &mut StepOutput) {
        for row in self.rows {
            out.push(row.answer.unwrap_or_else(|| {
                Err(Error::new(ErrorKind::Internal, STEP, "a row was left without an answer"))
            }));
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

/// For engines: a row on its way through a step.
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
    /// What the engine notes about it.
    pub work: W,
}

impl<'r, W> StepRow<'r, W> {
    /// The sequence that its tokens are appended to.
    pub fn sequence(&self) -> SequenceId {
        self.row.sequence
    }

    /// What is wanted after them.
    pub fn want(&self) -> Want<'r> {
        self.row.want
    }

    /// Whether it has no answer yet.
    pub fn is_waiting(&self) -> bool {
        self.answer.is_none()
    }

    /// How many tokens are left to feed; none once there is an answer.
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

    /// The token behind the next `count`, where the row has it: its log probability is a part of [`Want::EveryPosition`].
    pub fn following(&self, count: usize) -> Option<TokenId> {
        self.row.tokens.get(self.fed + count).copied()
    }

    /// How many of the next `count` tokens, the last ones, something is wanted after: all of them for [`Want::EveryPosition`], those
    /// among the guesses and the one in front of them for [`Want::Verify`], and else the row's last, if it is among them and anything is
    /// wanted.
    pub fn wanted(&self, count: usize) -> usize {
        let before = match self.row.want {
            Want::Nothing | Want::Hidden { .. } => return 0,
            Want::EveryPosition { .. } => 0,
            want => self.row.tokens.len().saturating_sub(want.drafts().unwrap_or(0) + 1),
        };
        (self.fed + count).min(self.row.tokens.len()).saturating_sub(before.max(self.fed))
    }

    /// The tokens in front of the answer to the `index`th of those that are [wanted](Self::wanted) of the next `count`: its penalties
    /// and draws read these behind what the sequence holds.
    pub fn next_before(&self, count: usize, index: usize) -> &'r [TokenId] {
        let next = self.next(count);
        let unwanted = next.len().saturating_sub(self.wanted(count));
        next.get(..unwanted + index + 1).unwrap_or(next)
    }

    /// How many of the tokens that are left to feed are guesses, where one that is none is left in front of them. The tokens before them
    /// belong together as a prompt does; guesses are computed as if fed one by one.
    pub fn guesses_left(&self) -> usize {
        self.row.want.drafts().map_or(0, |drafts| drafts.min(self.remaining().saturating_sub(1)))
    }

    /// How many answers to guesses it has taken in.
    pub fn answered(&self) -> usize {
        self.tokens.len().max(self.logits.len())
    }

    /// Adds hidden states of the next `count` tokens, for [`Want::Hidden`]: their sum, or the last of them for
    /// [`Pooling::Last`](crate::Pooling::Last). To be called before [`absorb`](Self::absorb).
    pub fn add_hidden(&mut self, sum: &[f32], count: usize) {
        if let Some(pool) = &mut self.hidden {
            pool.add_sum(sum, count);
        }
    }

    /// Takes in what a pass over the next `count` tokens gave: for [`Want::EveryPosition`] the results at those tokens, for
    /// [`Want::Verify`] and [`Want::VerifyLogits`] those at the [wanted](Self::wanted) ones ([`RowResult::Extended`] will do where there
    /// are none), and else what the row wants where they are its last, and [`RowResult::Extended`] before. Of [`Want::Hidden`] nothing is given but what
    /// [`add_hidden`](Self::add_hidden) has. An error is the row's answer.
    ///
    /// Results of another kind or number than wanted are answered as [`ErrorKind::Internal`].
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
            _ => Err(Error::new(
                ErrorKind::Internal,
                STEP,
                "a row was answered with something else than it wanted",
            )),
        };
        self.answer = Some(answer);
    }

    /// Whether its answer is the fault of what was computed, and not of what was asked.
    pub(super) fn is_fault(&self) -> bool {
        matches!(&self.answer, Some(Err(error)) if error.kind() == ErrorKind::Device)
    }

    /// Answers it with an error, unless it has an answer; its sequence stays as it is.
    pub fn fail(&mut self, error: Error) {
        self.answer.get_or_insert(Err(error));
    }
}
