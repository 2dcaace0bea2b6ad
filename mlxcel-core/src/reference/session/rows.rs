//! The rows of a step: checked before any work, followed until each has its answer.

use super::ReferenceSession;
use crate::reference::language::Entry;
use crate::reference::model::Shared;
use crate::reference::results::Distribution;
use crate::reference::sampling;
use crate::{
    Capabilities, Error, ErrorKind, PositionResult, Result, Row, RowResult, SampledToken, SamplingPlace,
    SamplingPlan, TokenMask, Want,
};

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
    pub(super) fn run(&mut self, shared: &Shared, cache: &mut Vec<Entry>) -> usize {
        let tokens = self.row.tokens;
        let chunk = self.fed..tokens.len().min(self.fed + shared.chunk);
        for index in chunk.clone() {
            cache.push(shared.language.entry(tokens[index], cache.len()));
            if let Want::EveryPosition { top } = self.row.want {
                let logits = shared.language.logits(cache);
                let following = tokens.get(index + 1).copied();
                self.positions.push(Distribution::new(&logits).position(following, top));
            }
        }
        self.fed = chunk.end;
        if self.fed == tokens.len() {
            self.answer = Some(self.finish(shared, cache));
        }
        chunk.len()
    }

    /// The answer, after the last token.
    fn finish(&mut self, shared: &Shared, cache: &[Entry]) -> Result<RowResult> {
        match self.row.want {
            Want::Nothing => Ok(RowResult::Extended),
            Want::Logits => Ok(RowResult::Logits(shared.language.logits(cache))),
            Want::EveryPosition { .. } => Ok(RowResult::Positions(std::mem::take(&mut self.positions))),
            Want::Next { plan, mask, top } => {
                let logits = shared.language.logits(cache);
                let token = sampling::choose(plan, mask, &logits, cache)?.ok_or_else(nothing_to_choose)?;
                let distribution = Distribution::new(&logits);
                let chosen = SampledToken::new(token, distribution.logprob(token));
                Ok(RowResult::Token(chosen.with_top(distribution.top(top))))
            }
        }
    }
}

fn nothing_to_choose() -> Error {
    Error::new(ErrorKind::InvalidInput, "step", "mask and biases leave no token to choose from")
}

impl ReferenceSession {
    /// Whether a row may run; `earlier` are the rows in front of it.
    pub(super) fn check_row(&self, row: &Row<'_>, earlier: &[Row<'_>]) -> Result<()> {
        let wrong = |message: &'static str| {
            Error::new(ErrorKind::InvalidInput, "step", message).with_context("sequence", row.sequence)
        };
        let position = self.healthy("step", row.sequence)?.cache.len();
        if row.tokens.is_empty() {
            return Err(wrong("a row must have at least one token"));
        }
        if earlier.iter().any(|other| other.sequence == row.sequence) {
            return Err(wrong("two rows of one step name this sequence"));
        }
        let vocabulary = self.shared.language.vocabulary();
        if let Some(token) = row.tokens.iter().find(|&&token| token as usize >= vocabulary) {
            return Err(wrong("the token is beyond the vocabulary")
                .with_context("token", token)
                .with_context("vocabulary_size", vocabulary));
        }
        self.check_want(&row.want)?;
        let capacity = self.capabilities.context;
        if row.tokens.len() > capacity - position {
            return Err(Error::new(
                ErrorKind::CapacityExceeded,
                "step",
                "the tokens do not fit into the context",
            )
            .with_context("sequence", row.sequence)
            .with_context("tokens", row.tokens.len())
            .with_context("position", position)
            .with_context("capacity", capacity));
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
                self.check_choice(plan, *mask)
            }
        }
    }

    /// Whether `plan` can choose from what `mask` allows.
    fn check_choice(&self, plan: &SamplingPlan, mask: Option<&TokenMask>) -> Result<()> {
        let unclaimed = |message: &'static str| {
            Error::unsupported("step", message).with_context("capability", "sampling")
        };
        if plan.place() != SamplingPlace::Device {
            return Err(unclaimed("the plan is for the host; ask for logits").with_context("plan", plan));
        }
        let mut active = plan.params().active_fields().iter();
        if let Some(field) = active.find(|&field| !self.capabilities.sampling.contains(field)) {
            return Err(
                unclaimed("the engine does not apply this field").with_context("field", field.as_str())
            );
        }
        let vocabulary = self.shared.language.vocabulary();
        if let Some(mask) = mask {
            Capabilities::require(self.capabilities.token_masks, "step", "token_masks")?;
            if mask.vocabulary_size() != vocabulary || mask.is_empty() {
                return Err(Error::new(
                    ErrorKind::InvalidInput,
                    "step",
                    "a token mask must be made for this vocabulary and allow a token",
                )
                .with_context("field", "mask")
                .with_context("vocabulary_size", vocabulary));
            }
        }
        let biases = sampling::biases(plan.params(), vocabulary)?;
        let may = |(token, &bias)| {
            bias > f64::NEG_INFINITY && mask.is_none_or(|mask: &TokenMask| mask.allows(token))
        };
        if (0..).zip(&biases).any(may) { Ok(()) } else { Err(nothing_to_choose()) }
    }
}
