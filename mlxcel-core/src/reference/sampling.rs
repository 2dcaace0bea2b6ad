//! The "device" sampling of this engine.
//!
//! The order is that of transformers: logit bias, repetition penalty, presence and frequency penalties; then
//! temperature, top-k, top-p, min-p and the draw, each on the result of the previous one.

use std::collections::BTreeMap;

use super::language::{Entry, mix};
use crate::distribution::most_likely;
use crate::error::{Error, ErrorKind, Result};
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

/// A token that may be drawn, and its score or its weight relative to the most likely.
type Candidate = (TokenId, f64);

/// The token that `plan` chooses after `cache`, among those that `mask` allows.
pub(super) fn choose(
    plan: &SamplingPlan,
    mask: Option<&TokenMask>,
    logits: &[f32],
    cache: &[Entry],
) -> Result<TokenId> {
    let params = plan.params();
    let scores = scores(plan, &params.biases(logits.len())?, mask, logits, cache);
    let allowed = (0..).zip(scores).filter(|&(_, score)| score > f64::NEG_INFINITY);
    let order = most_likely(allowed, logits.len());
    let chosen = if params.temperature == 0.0 {
        order.first().map(|&(best, _)| best)
    } else {
        draw(&candidates(params, &order), uniform(params.seed, cache.len()))
    };
    chosen.ok_or_else(|| Error::new(ErrorKind::Internal, "step", "a row without allowed tokens was run"))
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

/// The tokens that may be drawn, of those that may be `chosen` by their scores, in the order of their ids.
fn candidates(params: &SamplingParams, chosen: &[Candidate]) -> Vec<Candidate> {
    let best = chosen.first().map_or(0.0, |&(_, score)| score);
    let temperature = f64::from(params.temperature);
    let weight = |score: f64| {
        // An infinite bias leaves nothing beside it.
        if score == best { 1.0 } else { ((score - best) / temperature).exp() }
    };
    let mut kept: Vec<Candidate> = chosen.iter().map(|&(token, score)| (token, weight(score))).collect();
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
