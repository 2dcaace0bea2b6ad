//! The "device" sampling of this engine.
//!
//! The order is that of transformers: logit bias, repetition penalty, presence and frequency penalties; then
//! temperature, top-k, top-p, min-p and the draw, each on the result of the previous one.

use std::collections::BTreeMap;

use super::language::{Entry, mix};
use crate::error::Result;
use crate::plan::SamplingPlan;
use crate::sampling::{SamplingField, SamplingParams, TokenMask};
use crate::token::TokenId;

/// What this engine applies itself.
pub(super) const FIELDS: [SamplingField; 8] = [
    SamplingField::LogitBias,
    SamplingField::RepetitionPenalty,
    SamplingField::PresencePenalty,
    SamplingField::FrequencyPenalty,
    SamplingField::Temperature,
    SamplingField::TopK,
    SamplingField::TopP,
    SamplingField::MinP,
];

/// A token that may be drawn, and its weight relative to the most likely.
type Candidate = (TokenId, f64);

/// The token that `plan` chooses after `cache`, among those that `mask` allows; `None` if there are none.
pub(super) fn choose(
    plan: &SamplingPlan,
    mask: Option<&TokenMask>,
    logits: &[f32],
    cache: &[Entry],
) -> Result<Option<TokenId>> {
    let params = plan.params();
    let scores = scores(plan, &params.biases(logits.len())?, mask, logits, cache);
    let order = most_likely_first(&scores);
    let Some(&best) = order.first() else { return Ok(None) };
    if params.temperature == 0.0 {
        return Ok(Some(best));
    }
    Ok(draw(&candidates(params, &scores, &order), uniform(params.seed, cache.len())))
}

/// The logits after mask, bias and penalties.
fn scores(
    plan: &SamplingPlan,
    biases: &BTreeMap<TokenId, f64>,
    mask: Option<&TokenMask>,
    logits: &[f32],
    cache: &[Entry],
) -> Vec<f64> {
    let params = plan.params();
    let repetition = f64::from(params.repetition_penalty.unwrap_or(1.0));
    let presence = f64::from(params.presence_penalty.unwrap_or(0.0));
    let frequency = f64::from(params.frequency_penalty.unwrap_or(0.0));
    let count = |entries: &[Entry], token| entries.iter().filter(|entry| entry.token == token).count();
    (0..)
        .zip(logits)
        .map(|(token, &logit)| {
            if mask.is_some_and(|mask| !mask.allows(token)) {
                return f64::NEG_INFINITY;
            }
            let mut score = f64::from(logit) + biases.get(&token).copied().unwrap_or(0.0);
            if count(cache, token) > 0 {
                score = if score < 0.0 { score * repetition } else { score / repetition };
            }
            match count(cache.get(plan.prompt_length()..).unwrap_or_default(), token) {
                0 => score,
                generated => score - (presence + frequency * generated as f64),
            }
        })
        .collect()
}

/// The tokens that may be chosen at all, most likely first, ties go to the lowest id.
fn most_likely_first(scores: &[f64]) -> Vec<TokenId> {
    let mut order: Vec<TokenId> =
        (0..).zip(scores).filter(|&(_, &score)| score > f64::NEG_INFINITY).map(|(token, _)| token).collect();
    order.sort_by(|&a, &b| scores[b as usize].total_cmp(&scores[a as usize]));
    order
}

/// The tokens that may be drawn, in the order of their ids.
fn candidates(params: &SamplingParams, scores: &[f64], order: &[TokenId]) -> Vec<Candidate> {
    let best = order.first().map_or(0.0, |&token| scores[token as usize]);
    let temperature = f64::from(params.temperature);
    let weight = |score: f64| {
        // An infinite bias leaves nothing beside it.
        if score == best { 1.0 } else { ((score - best) / temperature).exp() }
    };
    let mut kept: Vec<Candidate> =
        order.iter().map(|&token| (token, weight(scores[token as usize]))).collect();
    if let Some(k) = params.top_k {
        kept.truncate(k as usize);
    }
    if let Some(p) = params.top_p.filter(|&p| p < 1.0) {
        let enough = f64::from(p) * total(&kept);
        let mut before = 0.0;
        kept.retain(|&(_, weight)| {
            let needed = before < enough;
            before += weight;
            needed
        });
    }
    if let Some(p) = params.min_p {
        // The most likely has weight 1.
        kept.retain(|&(_, weight)| weight >= f64::from(p));
    }
    kept.sort_by_key(|&(token, _)| token);
    kept
}

fn total(candidates: &[Candidate]) -> f64 {
    candidates.iter().map(|&(_, weight)| weight).sum()
}

/// The candidate at which the summed weights pass the part `uniform` of their total.
fn draw(candidates: &[Candidate], uniform: f64) -> Option<TokenId> {
    let target = uniform * total(candidates);
    let mut sum = 0.0;
    let passed = candidates.iter().find(|&&(_, weight)| {
        sum += weight;
        target < sum
    });
    // Rounding may leave the sum a little below its total.
    passed.or(candidates.last()).map(|&(token, _)| token)
}

/// A number in [0, 1) that depends on the seed and `position` alone.
fn uniform(seed: u64, position: usize) -> f64 {
    // The 53 bits that a double holds.
    (mix(mix(seed) ^ position as u64) >> 11) as f64 * (-53f64).exp2()
}
