//! Requests for the rows of a step.

use std::collections::BTreeMap;

use mlxcel_core::{Answer, Positions, SamplingField, SamplingPlan, TokenId};
use mlxcel_models::FedRow;

use super::request::{Choice, Occurrence, Output};

/// The output wanted after the next `count` tokens of a row, whose sequence has `held` before those.
pub(super) fn output(row: &FedRow<'_>, count: usize, held: &[TokenId]) -> Output {
    let wanted = row.wanted(count);
    match row.want().answer {
        _ if wanted == 0 => Output::Nothing,
        Answer::Likelihoods { top } => {
            Output::Likelihoods { count: wanted, top, following: row.following(count) }
        }
        Answer::Hidden if row.want().positions == Positions::First => Output::FirstHidden,
        Answer::Hidden => Output::Hidden(wanted),
        Answer::EachHidden => Output::EachHidden(wanted),
        Answer::Logits => Output::Logits(wanted),
        Answer::Token { plan, masks, top } => {
            let choice = |index: usize| Choice {
                plan: plan.clone(),
                mask: masks.get(row.answered() + index).cloned(),
                top,
                history: history(plan, held, row.next_before(count, index)),
            };
            Output::Tokens((0..wanted).map(choice).collect())
        }
        _ => Output::Nothing,
    }
}

/// The tokens of `held` and `next` that `plan` counts, in id order.
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
    fn count_penalties_use_generated_tokens_and_repetition_uses_all() {
        let mut params = SamplingParams::greedy();
        let engine = Capabilities::new(1, 1).with_sampling(SamplingField::ALL.iter().copied().collect());
        let plan = SamplingPlan::negotiate(&params, &engine).unwrap().with_prompt_length(3);
        assert!(history(&plan, &[5, 5], &[6]).is_empty(), "nobody asks");
        params.presence_penalty = Some(1.0);
        let plan = SamplingPlan::negotiate(&params, &engine).unwrap().with_prompt_length(3);
        let found: Vec<_> =
            history(&plan, &[5, 5, 6, 6, 7], &[6]).iter().map(|o| (o.token, o.generated)).collect();
        assert_eq!(found, [(5, 0), (6, 2), (7, 1)]);
    }
}
