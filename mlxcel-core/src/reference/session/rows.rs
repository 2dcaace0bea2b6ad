//! What a pass computes of a row.

use crate::reference::model::{Cache, Shared};
use crate::reference::results::Distribution;
use crate::reference::sampling;
use crate::{Error, ErrorKind, Result, RowResult, SampledToken, StepRow, Want};

/// Feeds the next `count` tokens of a row into its cache, and gives what they say.
pub(super) fn run(
    row: &mut StepRow<'_>,
    count: usize,
    shared: &Shared,
    cache: &mut Cache,
) -> Result<RowResult> {
    let tokens = row.next(count);
    let mut positions = Vec::new();
    for (index, &token) in tokens.iter().enumerate() {
        cache.push(shared.language.entry(token, cache.position()));
        if let Want::EveryPosition { top } = row.want() {
            let following = tokens.get(index + 1).copied().or_else(|| row.following(count));
            positions.push(Distribution::new(&shared.logits(cache)?).position(following, top));
        }
        if let Want::Hidden { .. } = row.want() {
            row.add_hidden(&shared.hidden(cache), 1);
        }
    }
    match row.want() {
        Want::EveryPosition { .. } => Ok(RowResult::Positions(positions)),
        Want::Logits if row.ends_with(count) => Ok(RowResult::Logits(shared.logits(cache)?)),
        Want::Next { plan, mask, top } if row.ends_with(count) => {
            let logits = shared.logits(cache)?;
            let token = sampling::choose(plan, mask, &logits, &cache.entries)?.ok_or_else(|| {
                Error::new(ErrorKind::Internal, "step", "a row that has nothing to choose from was run")
            })?;
            let distribution = Distribution::new(&logits);
            let chosen = SampledToken::new(token, distribution.logprob(token));
            Ok(RowResult::Token(chosen.with_top(distribution.top(top))))
        }
        _ => Ok(RowResult::Extended),
    }
}
