//! The rows of a step and their results.

use mlxcel_core::{Answer, Distribution, Error, Positions, Result, RowResult, SampledToken, TokenId};
use mlxcel_models::{FedRow, FedRows, Feed};

use super::GraphSession;
use crate::executor::Executor;
use crate::plan::{Pending, Wants};

impl<E: Executor> GraphSession<E> {
    /// The tokens of each row's feed that remain; none once it has a result.
    pub(super) fn pending(&self, rows: &FedRows<'_>) -> Vec<Pending> {
        rows.iter().map(|row| self.pending_of(row)).collect()
    }

    fn pending_of(&self, row: &FedRow<'_>) -> Pending {
        let (remaining, ends) = (Feed::left(row), row.wanted(row.progress.new));
        // What states lack of earlier draft tokens is computed together with the next tokens.
        let lacks = !self.shared.epochs.depend_on_length() && !row.progress.recompute.is_empty();
        let together = lacks
            && row.progress.new == ends
            && self.table.capabilities().verification
            && remaining <= self.shared.chunks.most_verified();
        let wants = match wants(row) {
            Wants::Ends(_) | Wants::Last if together => Wants::Ends(remaining),
            Wants::Ends(_) => Wants::Ends(ends),
            wants => wants,
        };
        Pending { remaining, wants }
    }
}

fn wants(row: &FedRow<'_>) -> Wants {
    match (row.want().answer, row.want().positions) {
        (Answer::Hidden, Positions::Last) => Wants::LastHidden,
        (Answer::Hidden | Answer::EachHidden, _) => Wants::EveryHidden,
        (_, Positions::All) => Wants::Every,
        (_, Positions::Drafts(_)) => Wants::Ends(0),
        _ => Wants::Last,
    }
}

/// Which of a pass's output rows a row needs the logits or hidden states of, if it feeds the next `tokens`
/// there and its outputs are `outputs`: none of tokens before its own, and none if the token that the program
/// chose is all that is wanted.
pub(super) fn wanted_rows(
    row: &FedRow<'_>,
    tokens: usize,
    outputs: std::ops::Range<usize>,
) -> std::ops::Range<usize> {
    let wanted = match row.want().answer {
        Answer::Token { masks: [], top: 0, .. } => 0,
        _ => row.wanted(row.progress.new_within(tokens)).min(outputs.len()),
    };
    outputs.end - wanted..outputs.end
}

/// The result of a pass that fed the next `tokens` of a row, for its own ones of them, from the most likely
/// tokens after the last of them, and the logits or hidden states asked for by [`wanted_rows`].
pub(super) fn result(
    row: &mut FedRow<'_>,
    tokens: usize,
    best: &[(TokenId, f32)],
    values: Vec<Vec<f32>>,
) -> Result<RowResult> {
    let wanted = row.wanted(row.progress.new_within(tokens));
    if wanted == 0 {
        return Ok(RowResult::Extended);
    }
    let logits = values.iter().enumerate();
    match row.want().answer {
        Answer::Likelihoods { top } => {
            let position = |(index, logits): (usize, &Vec<f32>)| {
                Ok(Distribution::new(logits)?.position(row.following(index + 1), top))
            };
            let positions = logits.map(position);
            positions.collect::<Result<_>>().map(RowResult::Likelihoods)
        }
        Answer::Token { masks: [], top: 0, .. } => {
            let own = best.get(best.len().saturating_sub(wanted)..).unwrap_or_default();
            // As long as it becomes: collecting results allocates for four, in every step.
            let mut tokens = Vec::with_capacity(own.len());
            for &(token, logprob) in own {
                // The program's own, which is finite unless the logits make no distribution.
                if !logprob.is_finite() {
                    return Err(Error::not_a_number("step"));
                }
                tokens.push(SampledToken::new(token, logprob));
            }
            Ok(RowResult::Tokens(tokens))
        }
        Answer::Token { masks, top, .. } => {
            let answered = row.answered();
            let chosen =
                logits.map(|(i, logits)| Distribution::new(logits)?.choose(masks.get(answered + i), top));
            chosen.collect::<Result<_>>().map(RowResult::Tokens)
        }
        Answer::Logits => {
            values.iter().try_for_each(|logits| Distribution::check(logits))?;
            Ok(RowResult::Logits(values))
        }
        Answer::Hidden | Answer::EachHidden => {
            values.iter().for_each(|state| row.add_hidden(state, 1));
            Ok(RowResult::Extended)
        }
        _ => Ok(RowResult::Extended),
    }
}
