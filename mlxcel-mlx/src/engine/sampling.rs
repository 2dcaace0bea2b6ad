//! Sampling on the device.
//!
//! The order is that of transformers: logit bias, repetition penalty, presence and frequency penalties; then
//! temperature, top-k, top-p, min-p and the draw, each on the result of the previous one; ties go to the
//! lowest id. The random number is that of the host sampler (the first of stream `position` of ChaCha8,
//! seeded with the seed), truncated to the 24 bits of a float32, so both sample the same tokens up to
//! rounding.

use mlxcel_core::{Result, SamplingField, SamplingParams};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::request::{Choice, Occurrence};
use crate::array::{Array, DType};

/// The sampling fields that this engine applies itself.
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

/// The tokens of a sequence, and how often each was generated, over the vocabulary.
#[derive(Debug)]
pub(super) struct Counted {
    /// `[vocabulary]` booleans.
    held: Array,
    /// `[vocabulary]` float32.
    generated: Array,
}

impl Counted {
    /// The counts for a choice with penalties; none without penalties.
    pub(super) fn new(history: &[Occurrence], vocabulary: usize) -> Result<Option<Self>> {
        if history.is_empty() {
            return Ok(None);
        }
        let tokens: Vec<u32> = history.iter().map(|occurrence| occurrence.token).collect();
        let counts: Vec<f32> = history.iter().map(|occurrence| occurrence.generated as f32).collect();
        let tokens = Array::from_slice(&tokens, &[history.len()])?;
        let none = Array::zeros(&[vocabulary], DType::F32)?;
        let ones = Array::full(&[history.len()], 1.0, DType::F32)?;
        let held = none.put_along_axis(&tokens, &ones, 0)?.astype(DType::Bool)?;
        let counts = Array::from_slice(&counts, &[history.len()])?;
        Ok(Some(Self { held, generated: none.put_along_axis(&tokens, &counts, 0)? }))
    }

    /// The same with one more token (`[1]`), counted as generated or not.
    pub(super) fn with(&self, token: &Array, generated: bool) -> Result<Self> {
        let vocabulary = i32::try_from(self.held.len()).unwrap_or(i32::MAX);
        let added = Array::arange(0, vocabulary, DType::U32)?.equal(token)?;
        let counts = match generated {
            true => self.generated.add(&added.astype(DType::F32)?)?,
            false => self.generated.clone(),
        };
        Ok(Self { held: self.held.logical_or(&added)?, generated: counts })
    }
}

/// The token (`[1]`, `U32`) chosen by `choice` from `logits` (`[vocabulary]`, float32) for `position`.
pub(super) fn choose(
    logits: &Array,
    choice: &Choice,
    counted: Option<&Counted>,
    position: usize,
) -> Result<Array> {
    let params = choice.plan.params();
    let scores = masked(penalized(logits, params, counted)?, choice)?;
    if params.temperature > 0.0 { draw(&scores, params, position) } else { scores.argmax(-1, true) }
}

/// The logits after bias and penalties.
fn penalized(logits: &Array, params: &SamplingParams, counted: Option<&Counted>) -> Result<Array> {
    let mut scores = logits.clone();
    let active = params.active_fields();
    if active.contains(SamplingField::LogitBias) {
        let biases = params.biases(logits.len())?;
        let tokens: Vec<u32> = biases.keys().copied().collect();
        let values: Vec<f32> = biases.values().map(|&bias| bias as f32).collect();
        let tokens = Array::from_slice(&tokens, &[tokens.len()])?;
        scores = scores.scatter_add_axis(&tokens, &Array::from_slice(&values, &[values.len()])?, 0)?;
    }
    let Some(counted) = counted else { return Ok(scores) };
    if let Some(penalty) = params.repetition_penalty.filter(|&penalty| penalty != 1.0) {
        let penalty = Array::scalar(penalty, DType::F32)?;
        let zero = Array::scalar(0.0, DType::F32)?;
        let changed = scores.less(&zero)?.select(&scores.multiply(&penalty)?, &scores.divide(&penalty)?)?;
        scores = counted.held.select(&changed, &scores)?;
    }
    let (presence, frequency) =
        (params.presence_penalty.unwrap_or(0.0), params.frequency_penalty.unwrap_or(0.0));
    if presence != 0.0 || frequency != 0.0 {
        let zero = Array::scalar(0.0, DType::F32)?;
        let penalty = counted.generated.multiply_scalar(frequency)?.add_scalar(presence)?;
        let changed = scores.subtract(&penalty)?;
        scores = counted.generated.greater(&zero)?.select(&changed, &scores)?;
    }
    Ok(scores)
}

/// The scores, with minus infinity for tokens that the mask forbids.
fn masked(scores: Array, choice: &Choice) -> Result<Array> {
    let Some(mask) = &choice.mask else { return Ok(scores) };
    let allowed: Vec<u8> = (0..).take(scores.len()).map(|token| u8::from(mask.allows(token))).collect();
    let allowed = Array::from_bytes(&allowed, &[allowed.len()], DType::Bool)?;
    allowed.select(&scores, &Array::scalar(f32::NEG_INFINITY, DType::F32)?)
}

/// Draws from scores with at least one that is finite or infinite upwards.
fn draw(scores: &Array, params: &SamplingParams, position: usize) -> Result<Array> {
    let best = scores.max(&[-1], true)?;
    let one = Array::scalar(1.0, DType::F32)?;
    let zero = Array::scalar(0.0, DType::F32)?;
    let temperature = Array::scalar(params.temperature, DType::F32)?;
    // Relative to the most likely. With an infinite bias, all other weights are zero.
    let weigh = |scores: &Array| -> Result<Array> {
        let weights = scores.subtract(&best)?.divide(&temperature)?.exp()?;
        scores.equal(&best)?.select(&one, &weights)
    };
    let mut weights = weigh(scores)?;
    if let Some(kept) = most_likely(scores, params, weigh)? {
        weights = kept.select(&weights, &zero)?;
    }
    if let Some(least) = params.min_p.filter(|&p| p > 0.0) {
        // The most likely has weight 1.
        weights = weights.greater_equal(&Array::scalar(least, DType::F32)?)?.select(&weights, &zero)?;
    }
    let sums = weights.cumsum(-1, true)?;
    // Not simply the last sum: blockwise sums on a device may decrease by a rounding.
    let reached = weights.greater(&zero)?.select(&sums, &zero)?;
    let target = reached.max(&[-1], true)?.multiply_scalar(uniform(params.seed, position))?;
    reached.greater(&target)?.astype(DType::F32)?.argmax(-1, true)
}

/// Which tokens top-k and top-p keep; `None` if neither is set.
fn most_likely(
    scores: &Array,
    params: &SamplingParams,
    weigh: impl Fn(&Array) -> Result<Array>,
) -> Result<Option<Array>> {
    let most = params.top_k.map(|k| k as usize).filter(|&k| k < scores.len());
    let mass = params.top_p.filter(|&p| p < 1.0);
    if most.is_none() && mass.is_none() {
        return Ok(None);
    }
    // Ascending negated scores are descending scores.
    let mut candidates = scores.negative()?;
    if let Some(k) = most {
        candidates = candidates.partition(k - 1, -1)?.slice_axis(-1, 0, k)?;
    }
    let (least, count) = match mass {
        None => {
            (candidates.max(&[-1], true)?.negative()?, Array::from_slice(&[candidates.len() as i32], &[1])?)
        }
        Some(p) => {
            let descending = candidates.sort(-1)?.negative()?;
            let weights = weigh(&descending)?;
            let before = weights.cumsum(-1, false)?;
            let enough = weights.sum(&[-1], true)?.multiply_scalar(p)?;
            let needed = before.less(&enough)?.astype(DType::I32)?.sum(&[-1], true)?;
            // Even if a tiny p rounds to zero in the product, the most likely token is kept.
            let one = Array::from_slice(&[1i32], &[1])?;
            let needed = needed.maximum(&one)?;
            (descending.take(&needed.subtract(&one)?, 0)?, needed)
        }
    };
    // Of scores equal to the last kept one, the first are kept.
    let above = scores.greater(&least)?;
    let level = scores.equal(&least)?;
    let room = count.subtract(&above.astype(DType::I32)?.sum(&[-1], true)?)?;
    let rank = level.astype(DType::I32)?.cumsum(-1, true)?;
    above.logical_or(&level.logical_and(&rank.less_equal(&room)?)?).map(Some)
}

/// A number in [0, 1) that depends only on seed and position.
fn uniform(seed: u64, position: usize) -> f32 {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(position as u64);
    // The 24 bits that a float holds.
    (rng.next_u64() >> 40) as f32 * (-24f32).exp2()
}

#[cfg(test)]
mod tests;
