//! The rows of a step and their results.

use mlxcel_core::{Error, ErrorKind, Pooling, Result, RowResult, StepRow, StepRows, TokenId, Want};

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
    match work.want() {
        Want::EveryPosition { .. } => Wants::Every,
        Want::Hidden { pooling: Pooling::Last } => Wants::LastHidden,
        Want::Hidden { .. } => Wants::EveryHidden,
        want if want.drafts().is_some() => Wants::Ends(0),
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

/// Whether the next `tokens` of a row are its last.
fn ends_with(work: &Work<'_>, tokens: usize) -> bool {
    work.work.left() == tokens && work.ends_with(work.work.own)
}

/// Which of a pass's output rows a row needs the logits or hidden states of, if it feeds the next `tokens` there and its outputs
/// are `outputs`: none of tokens before its own.
pub(super) fn wanted_rows(
    work: &Work<'_>,
    tokens: usize,
    outputs: std::ops::Range<usize>,
) -> std::ops::Range<usize> {
    let none = outputs.end..outputs.end;
    let finished = ends_with(work, tokens);
    match work.want() {
        Want::Verify { plan: _, masks: [], top: 0, .. } => none,
        Want::Verify { .. } | Want::VerifyLogits { .. } => {
            outputs.end - work.wanted(next_tokens(work, tokens).1.len()).min(outputs.len())..outputs.end
        }
        _ if wants_every(work) => {
            outputs.end - next_tokens(work, tokens).1.len().min(outputs.len())..outputs.end
        }
        Want::Logits | Want::Hidden { .. } if finished => outputs.end - 1..outputs.end,
        Want::Next { mask, top, .. } if finished && (mask.is_some() || top > 0) => {
            outputs.end - 1..outputs.end
        }
        _ => none,
    }
}

/// What a pass that fed the next `tokens` of a row says of its own ones: out of the most likely tokens after the last of them, and the
/// logits or hidden states asked for by [`wanted_rows`].
pub(super) fn result(
    work: &mut Work<'_>,
    tokens: usize,
    best: &[(TokenId, f32)],
    values: Vec<Vec<f32>>,
) -> Result<RowResult> {
    let finished = ends_with(work, tokens);
    let wanted = work.wanted(next_tokens(work, tokens).1.len());
    match (work.want(), values.last()) {
        (Want::EveryPosition { top }, Some(_)) => {
            let following = |index: usize| work.following(index);
            let positions = values.iter().enumerate();
            let positions =
                positions.map(|(index, logits)| results::position(logits, following(index + 1), top));
            positions.collect::<Result<_>>().map(RowResult::Positions)
        }
        (Want::Hidden { .. }, _) => {
            values.iter().for_each(|state| work.add_hidden(state, 1));
            Ok(RowResult::Extended)
        }
        (Want::Verify { .. } | Want::VerifyLogits { .. }, _) if wanted == 0 => Ok(RowResult::Extended),
        (Want::Verify { masks, top, .. }, Some(_)) => {
            let answered = work.answered();
            let chosen = values.iter().enumerate();
            let chosen = chosen.map(|(i, logits)| results::choose(logits, masks.get(answered + i), top));
            chosen.collect::<Result<_>>().map(RowResult::Tokens)
        }
        (Want::Verify { .. }, None) => {
            let own = best.get(best.len().saturating_sub(wanted)..).unwrap_or_default();
            own.iter().copied().map(results::chosen).collect::<Result<_>>().map(RowResult::Tokens)
        }
        (Want::VerifyLogits { .. }, _) => {
            values.iter().try_for_each(|logits| results::check(logits))?;
            Ok(RowResult::LogitsEach(values))
        }
        (Want::Next { mask, top, .. }, Some(logits)) => {
            results::choose(logits, mask, top).map(RowResult::Token)
        }
        (Want::Next { .. }, None) if finished => {
            let best = best.last().copied().unwrap_or((0, f32::NAN));
            results::chosen(best).map(RowResult::Token)
        }
        (Want::Logits, _) if finished => {
            let missing = || Error::new(ErrorKind::Internal, "step", "a row's logits were not read");
            let logits = values.into_iter().next_back().ok_or_else(missing)?;
            results::check(&logits).map(|()| RowResult::Logits(logits))
        }
        _ => Ok(RowResult::Extended),
    }
}
