//! What a pass computes of a row.

use crate::distribution::Distribution;
use crate::error::Result;
use crate::reference::model::{Cache, Shared};
use crate::reference::{adapters, sampling};
use crate::step::RowResult;
use crate::table::StepRow;
use crate::want::Answer;

/// Feeds the next `count` tokens of a row into its cache, and gives what they say.
pub(super) fn run(
    row: &mut StepRow<'_>,
    count: usize,
    shared: &Shared,
    cache: &mut Cache,
) -> Result<RowResult> {
    let salt = adapters::salt(shared.adapters.as_ref(), cache.options.adapter.as_ref(), "step")?;
    let tokens = row.next(count);
    let unwanted = tokens.len() - row.wanted(count);
    let (mut positions, mut chosen, mut logits) = (Vec::new(), Vec::new(), Vec::new());
    for (index, &token) in tokens.iter().enumerate() {
        cache.push(shared.language.entry(token, cache.position(), salt));
        if row.want().states {
            row.add_states(&shared.hidden(cache));
        }
        if index < unwanted {
            continue;
        }
        match row.want().answer {
            Answer::Hidden | Answer::EachHidden => row.add_hidden(&shared.hidden(cache), 1),
            Answer::Likelihoods { top } => {
                let following = tokens.get(index + 1).copied().or_else(|| row.following(count));
                positions.push(Distribution::new(&shared.logits(cache)?)?.position(following, top));
            }
            Answer::Logits => logits.push(shared.logits(cache)?),
            Answer::Token { plan, masks, top } => {
                let (mask, logits) = (masks.get(row.answered() + chosen.len()), shared.logits(cache)?);
                let token = sampling::choose(plan, mask, &logits, &cache.entries)?;
                chosen.push(Distribution::new(&logits)?.sampled(token, top));
            }
            Answer::Nothing => {}
        }
    }
    Ok(match row.want().answer {
        _ if unwanted == tokens.len() => RowResult::Extended,
        Answer::Likelihoods { .. } => RowResult::Likelihoods(positions),
        Answer::Token { .. } => RowResult::Tokens(chosen),
        Answer::Logits => RowResult::Logits(logits),
        Answer::Hidden | Answer::EachHidden | Answer::Nothing => RowResult::Extended,
    })
}
