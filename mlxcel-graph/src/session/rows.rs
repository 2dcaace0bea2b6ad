//! The rows of a step and their results.

use mlxcel_core::{Answer, Positions, Result, RowResult, StepRow, StepRows, TokenId};

use crate::plan::{Pending, Wants};
use crate::results;

/// A row on its way through a step.
pub(super) type Work<'r> = StepRow<'r, Stretch>;

/// The rows of a step.
pub(super) type Works<'r> = StepRows<'r, Stretch>;

/// The part of a row that is fed now, rotated by the frequencies of the length that it ends with.
///
/// A row is one stretch, unless it wants something of every position: what a position says depends on those before it alone, so such a row
/// continues in another stretch where other frequencies begin to hold.
#[derive(Debug, Default)]
pub(super) struct Stretch {
    /// Preceding tokens of the sequence that its states lack and that still have to be fed.
    again: Vec<TokenId>,
    /// How many of the row's own tokens are still to be fed.
    own: usize,
    /// How many tokens the sequence holds when it ends.
    pub(super) length: usize,
}

impl Stretch {
    /// A stretch of `own` tokens, with which the sequence holds `length`, behind those to feed `again`.
    pub(super) fn new(own: usize, length: usize, again: Vec<TokenId>) -> Self {
        Self { again, own, length }
    }

    fn left(&self) -> usize {
        self.again.len() + self.own
    }

    /// Takes the next `count` tokens as fed.
    pub(super) fn feed(&mut self, count: usize) {
        let again = count.min(self.again.len());
        self.again.drain(..again);
        self.own -= count - again;
    }
}

/// How many of a row's tokens are left to feed, where it waits and stands between two stretches.
pub(super) fn next_stretch(work: &Work<'_>) -> Option<usize> {
    (work.is_waiting() && work.work.left() == 0).then(|| work.remaining())
}

/// The tokens of a row's stretch that remain to be fed; none once it has a result.
pub(super) fn pending(work: &Work<'_>) -> Pending {
    let remaining = if work.is_waiting() { work.work.left() } else { 0 };
    let wants = match wants(work) {
        Wants::Ends(_) => Wants::Ends(work.wanted(work.work.own)),
        wants => wants,
    };
    Pending { remaining, wants }
}

fn wants(work: &Work<'_>) -> Wants {
    match (work.want().answer, work.want().positions) {
        (Answer::Hidden, Positions::Last) => Wants::LastHidden,
        (Answer::Hidden, _) => Wants::EveryHidden,
        (_, Positions::All) => Wants::Every,
        (_, Positions::Drafts(_)) => Wants::Ends(0),
        _ => Wants::Last,
    }
}

/// Whether a row wants something of every position.
pub(super) fn wants_every(work: &Work<'_>) -> bool {
    matches!(wants(work), Wants::Every | Wants::EveryHidden)
}

/// The next `count` tokens of a row to feed: those before its own, and these.
pub(super) fn next_tokens<'w, 'r>(work: &'w Work<'r>, count: usize) -> (&'w [TokenId], &'r [TokenId]) {
    let again = &work.work.again[..count.min(work.work.again.len())];
    (again, work.next(count - again.len()))
}

/// Which of a pass's output rows a row needs the logits or hidden states of, if it feeds the next `tokens` there and its outputs
/// are `outputs`: none of tokens before its own, and none if the token that the program chose is all that is wanted.
pub(super) fn wanted_rows(
    work: &Work<'_>,
    tokens: usize,
    outputs: std::ops::Range<usize>,
) -> std::ops::Range<usize> {
    let wanted = match work.want().answer {
        Answer::Token { masks: [], top: 0, .. } => 0,
        _ => work.wanted(next_tokens(work, tokens).1.len()).min(outputs.len()),
    };
    outputs.end - wanted..outputs.end
}

/// The result of a pass that fed the next `tokens` of a row, for its own ones of them, from the most likely tokens after the last of them,
/// and the logits or hidden states asked for by [`wanted_rows`].
pub(super) fn result(
    work: &mut Work<'_>,
    tokens: usize,
    best: &[(TokenId, f32)],
    values: Vec<Vec<f32>>,
) -> Result<RowResult> {
    let wanted = work.wanted(next_tokens(work, tokens).1.len());
    if wanted == 0 {
        return Ok(RowResult::Extended);
    }
    let logits = values.iter().enumerate();
    match work.want().answer {
        Answer::Likelihoods { top } => {
            let positions =
                logits.map(|(index, logits)| results::position(logits, work.following(index + 1), top));
            positions.collect::<Result<_>>().map(RowResult::Likelihoods)
        }
        Answer::Token { masks: [], top: 0, .. } => {
            let own = best.get(best.len().saturating_sub(wanted)..).unwrap_or_default();
            // As long as it becomes: collecting results allocates for four, in every step.
            let mut tokens = Vec::with_capacity(own.len());
            for &best in own {
                tokens.push(results::chosen(best)?);
            }
            Ok(RowResult::Tokens(tokens))
        }
        Answer::Token { masks, top, .. } => {
            let answered = work.answered();
            let chosen = logits.map(|(i, logits)| results::choose(logits, masks.get(answered + i), top));
            chosen.collect::<Result<_>>().map(RowResult::Tokens)
        }
        Answer::Logits => {
            values.iter().try_for_each(|logits| results::check(logits))?;
            Ok(RowResult::Logits(values))
        }
        Answer::Hidden => {
            values.iter().for_each(|state| work.add_hidden(state, 1));
            Ok(RowResult::Extended)
        }
        _ => Ok(RowResult::Extended),
    }
}
