//! The rows of a step, followed until each has its answer.

use std::collections::BTreeMap;

use mlxcel_core::{
    Error, ErrorKind, PositionResult, Result, Row, RowResult, SamplingField, SamplingPlan, TokenId, Want,
};

use super::request::{Choice, Occurrence, Output, RowAnswer};

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

    /// How many tokens are left to feed; none once there is an answer.
    pub(super) fn remaining(&self) -> usize {
        if self.answer.is_some() { 0 } else { self.row.tokens.len() - self.fed }
    }

    /// The next `count` tokens.
    pub(super) fn next(&self, count: usize) -> &'a [TokenId] {
        &self.row.tokens[self.fed..self.fed + count]
    }

    /// What is wanted after the next `count` tokens, with which the sequence will hold `held`, in front of those.
    pub(super) fn output(&self, count: usize, held: &[TokenId]) -> Output {
        let end = self.fed + count;
        let finished = end == self.row.tokens.len();
        match self.row.want {
            Want::EveryPosition { top } => {
                Output::Every { top, following: self.row.tokens.get(end).copied() }
            }
            Want::Logits if finished => Output::Logits,
            Want::Next { plan, mask, top } if finished => {
                let history = history(plan, held, self.next(count));
                Output::Token(Box::new(Choice { plan: plan.clone(), mask: mask.cloned(), top, history }))
            }
            _ => Output::Nothing,
        }
    }

    /// Takes in what a pass that fed `count` tokens gave.
    pub(super) fn absorb(&mut self, count: usize, answer: RowAnswer) {
        self.fed += count;
        let finished = self.fed == self.row.tokens.len();
        let result = match (self.row.want, answer) {
            (Want::EveryPosition { .. }, RowAnswer::Every(positions)) => {
                self.positions.extend(positions);
                Ok(RowResult::Positions(Vec::new()))
            }
            (_, RowAnswer::Nothing) if !finished => return,
            (Want::Nothing, RowAnswer::Nothing) => Ok(RowResult::Extended),
            (Want::Logits, RowAnswer::Logits(logits)) => Ok(RowResult::Logits(logits)),
            (Want::Next { .. }, RowAnswer::Token(token)) => Ok(RowResult::Token(token)),
            _ => Err(Error::new(
                ErrorKind::Internal,
                "step",
                "a row was answered with something else than it wanted",
            )),
        };
        if finished {
            self.answer = Some(result.map(|result| match result {
                RowResult::Positions(_) => RowResult::Positions(std::mem::take(&mut self.positions)),
                result => result,
            }));
        } else if let Err(error) = result {
            self.answer = Some(Err(error));
        }
    }
}

/// The tokens of `held` and `next` that `plan` counts, in the order of their ids.
pub(super) fn history(plan: &SamplingPlan, held: &[TokenId], next: &[TokenId]) -> Vec<Occurrence> {
    let active = plan.params().active_fields();
    let counts =
        [SamplingField::RepetitionPenalty, SamplingField::PresencePenalty, SamplingField::FrequencyPenalty];
    if !counts.into_iter().any(|field| active.contains(field)) {
        return Vec::new();
    }
    let mut seen: BTreeMap<TokenId, u32> = BTreeMap::new();
    for (position, &token) in held.iter().chain(next).enumerate() {
        *seen.entry(token).or_default() += u32::from(position >= plan.prompt_length());
    }
    seen.into_iter().map(|(token, generated)| Occurrence { token, generated }).collect()
}

#[cfg(test)]
mod tests {
    use mlxcel_core::{Capabilities, SamplingParams};

    use super::*;

    #[test]
    fn penalties_count_what_was_generated_and_see_what_was_given() {
        let mut params = SamplingParams::greedy();
        let engine = Capabilities::new(1, 1).with_sampling(SamplingField::ALL.into_iter().collect());
        let plan = SamplingPlan::negotiate(&params, &engine).unwrap().with_prompt_length(3);
        assert!(history(&plan, &[5, 5], &[6]).is_empty(), "nobody asks");
        params.presence_penalty = Some(1.0);
        let plan = SamplingPlan::negotiate(&params, &engine).unwrap().with_prompt_length(3);
        let found: Vec<_> =
            history(&plan, &[5, 5, 6, 6, 7], &[6]).iter().map(|o| (o.token, o.generated)).collect();
        assert_eq!(found, [(5, 0), (6, 2), (7, 1)]);
    }
}
