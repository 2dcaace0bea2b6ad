//! What a pass computes of a row.

use crate::reference::model::{Cache, Shared};
use crate::reference::results::Distribution;
use crate::reference::sampling;
use crate::{Error, ErrorKind, Result, RowResult, SampledToken, SamplingPlan, StepRow, TokenMask, Want};

/// Feeds the next `count` tokens of a row into its cache, and gives what they say.
pub(super) fn run(
    row: &mut StepRow<'_>,
    count: usize,
    shared: &Shared,
    cache: &mut Cache,
) -> Result<RowResult> {
    let tokens = row.next(count);
    let unwanted = tokens.len() - row.wanted(count);
    let (mut positions, mut chosen, mut logits) = (Vec::new(), Vec::new(), Vec::new());
    for (index, &token) in tokens.iter().enumerate() {
        cache.push(shared.language.entry(token, cache.position()));
        match row.want() {
            Want::Hidden { .. } => row.add_hidden(&shared.hidden(cache), 1),
            _ if index < unwanted => {}
            Want::EveryPosition { top } => {
                let following = tokens.get(index + 1).copied().or_else(|| row.following(count));
                positions.push(Distribution::new(&shared.logits(cache)?).position(following, top));
            }
            Want::Logits | Want::VerifyLogits { .. } => logits.push(shared.logits(cache)?),
            Want::Next { plan, mask, top } => chosen.push(choose(plan, mask, top, shared, cache)?),
            Want::Verify { plan, masks, top, .. } => {
                let mask = masks.get(row.answered() + chosen.len());
                chosen.push(choose(plan, mask, top, shared, cache)?);
            }
            Want::Nothing => {}
        }
    }
    Ok(match row.want() {
        Want::EveryPosition { .. } => RowResult::Positions(positions),
        Want::Verify { .. } => RowResult::Tokens(chosen),
        Want::VerifyLogits { .. } => RowResult::LogitsEach(logits),
        _ => match (chosen.pop(), logits.pop()) {
            (Some(token), _) => RowResult::Token(token),
            (_, Some(logits)) => RowResult::Logits(logits),
            _ => RowResult::Extended,
        },
    })
}

/// The token that follows what `cache` holds.
fn choose(
    plan: &SamplingPlan,
    mask: Option<&TokenMask>,
    top: u16,
    shared: &Shared,
    cache: &Cache,
) -> Result<SampledToken> {
    let logits = shared.logits(cache)?;
    let token = sampling::choose(plan, mask, &logits, &cache.entries)?
        .ok_or_else(|| Error::new(ErrorKind::Internal, "step", "a row without allowed tokens was run"))?;
    let distribution = Distribution::new(&logits);
    let chosen = SampledToken::new(token, distribution.logprob(token));
    Ok(chosen.with_top(distribution.top(top)))
}
