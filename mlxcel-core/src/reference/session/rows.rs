//! The rows of a step, followed until each has its answer.

use crate::reference::model::{Cache, Shared};
use crate::reference::results::Distribution;
use crate::reference::sampling;
use crate::{Error, ErrorKind, PositionResult, Result, Row, RowResult, SampledToken, Want};

/// A row on its way through a step.
pub(super) struct Work<'a> {
    pub(super) row: Row<'a>,
    /// How many of its tokens have been fed.
    fed: usize,
    /// What [`Want::EveryPosition`] has gathered.
    positions: Vec<PositionResult>,
    /// The answer, once there is one.
    pub(super) answer: Option<Result<RowResult>>,
}

impl<'a> Work<'a> {
    pub(super) fn new(row: Row<'a>, checked: Result<()>) -> Self {
        Self { row, fed: 0, positions: Vec::new(), answer: checked.err().map(Err) }
    }

    /// Feeds the next chunk into `cache`, and answers where it is the last. Gives the number of tokens.
    pub(super) fn run(&mut self, shared: &Shared, cache: &mut Cache) -> usize {
        let tokens = self.row.tokens;
        let chunk = self.fed..tokens.len().min(self.fed + shared.chunk);
        for index in chunk.clone() {
            cache.push(shared.language.entry(tokens[index], cache.entries.len()));
            if let Want::EveryPosition { top } = self.row.want {
                let logits = match shared.logits(cache) {
                    Ok(logits) => logits,
                    Err(error) => {
                        self.answer = Some(Err(error));
                        break;
                    }
                };
                let following = tokens.get(index + 1).copied();
                self.positions.push(Distribution::new(&logits).position(following, top));
            }
        }
        self.fed = chunk.end;
        if self.fed == tokens.len() && self.answer.is_none() {
            self.answer = Some(self.finish(shared, cache));
        }
        chunk.len()
    }

    /// The answer, after the last token.
    fn finish(&mut self, shared: &Shared, cache: &Cache) -> Result<RowResult> {
        match self.row.want {
            Want::Nothing => Ok(RowResult::Extended),
            Want::Logits => Ok(RowResult::Logits(shared.logits(cache)?)),
            Want::EveryPosition { .. } => Ok(RowResult::Positions(std::mem::take(&mut self.positions))),
            Want::Next { plan, mask, top } => {
                let logits = shared.logits(cache)?;
                let token = sampling::choose(plan, mask, &logits, &cache.entries)?.ok_or_else(|| {
                    Error::new(ErrorKind::Internal, "step", "a row that has nothing to choose from was run")
                })?;
                let distribution = Distribution::new(&logits);
                let chosen = SampledToken::new(token, distribution.logprob(token));
                Ok(RowResult::Token(chosen.with_top(distribution.top(top))))
            }
        }
    }
}
