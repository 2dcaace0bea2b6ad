//! Attention of every token to those that it sees.

use mlxcel_core::Result;
use mlxcel_models::walk::Ops;
use mlxcel_models::{
    AttentionCore, AttentionMask, DistanceBias, LatentAttention, StateSlot, alibi_slopes, distance_bucket,
};

use super::Naive;
use super::tensor::{Tensor, dot, largest, rotated, softmax};

impl Naive<'_> {
    pub(super) fn attend(
        &mut self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        core: &AttentionCore,
    ) -> Result<Tensor> {
        let AttentionCore { scale, mask, window, rope, soft_cap, sinks, query_scale: _, distance } = core;
        let (heads, kv_heads) = (query.shape[1], key.shape[1]);
        let length = self.tokens.len();
        let turn = |x: &Tensor, heads: usize| match rope {
            Some(rope) => x.map_rows(|index, x| rotated(x, rope, index / heads, length)),
            None => x.clone(),
        };
        let (query, key) = (turn(query, heads), turn(key, kv_heads));
        let [keys, values] = [&key, value].map(|tensor| tensor.rows().collect::<Vec<_>>());
        // Of a head, for a key so many positions behind.
        let biased: Box<dyn Fn(usize, i64) -> f32> = match distance {
            None => Box::new(|_, _| 0.0),
            Some(DistanceBias::Slopes) => {
                let slopes = alibi_slopes(heads);
                Box::new(move |head, offset| -slopes[head] * offset.abs() as f32)
            }
            Some(DistanceBias::Buckets(table)) => {
                let table = self.weight(*table).clone();
                Box::new(move |head, offset| table.data[distance_bucket(offset) * heads + head])
            }
        };
        let sinks = sinks.map(|sinks| self.weight(sinks).data.clone());
        let mixed = query.map_rows(|index, query| {
            let (at, head) = (index / heads, index % heads);
            let first = window.map_or(0, |window| match mask {
                AttentionMask::Chunked => at - at % window,
                AttentionMask::Causal | AttentionMask::Bidirectional => (at + 1).saturating_sub(window),
            });
            let end = match mask {
                AttentionMask::Causal | AttentionMask::Chunked => at + 1,
                AttentionMask::Bidirectional => window.map_or(length, |window| length.min(at + window)),
            };
            let row = |position: usize| position * kv_heads + head / (heads / kv_heads);
            let score = |position| {
                let score = dot(query, keys[row(position)]) * scale;
                let score = soft_cap.map_or(score, |cap| cap * (score / cap).tanh());
                score + biased(head, position as i64 - at as i64)
            };
            let mut scores = (first..end).map(score).collect::<Vec<_>>();
            scores.extend(sinks.iter().map(|sinks| sinks[head]));
            let weights = softmax(&scores);
            let width = value.width();
            let sum = |element| {
                (first..end).zip(&weights).map(|(at, weight)| weight * values[row(at)][element]).sum()
            };
            (0..width).map(sum).collect()
        });
        self.join_heads(&mixed)
    }

    pub(super) fn attend_latent(
        &self,
        query: &Tensor,
        entry: &Tensor,
        latent: &LatentAttention,
        selected: Option<StateSlot>,
    ) -> Tensor {
        let &LatentAttention { heads, rank, scale, ref rope, .. } = latent;
        let length = self.tokens.len();
        let turn = |x: &Tensor, heads: usize| match rope {
            Some(rope) => x.map_rows(|index, x| {
                [&x[..rank], &rotated(&x[rank..], rope, index / heads, length)].concat()
            }),
            None => x.clone(),
        };
        let (query, entry) = (turn(query, heads), turn(entry, 1));
        let entries = entry.rows().collect::<Vec<_>>();
        query.map_rows(|index, query| {
            let seen = match selected {
                Some(slot) => self.selected[&slot][index / heads].iter().map(|&at| entries[at]).collect(),
                None => entries[..=index / heads].to_vec(),
            };
            let scores = seen.iter().map(|entry| dot(query, entry) * scale).collect::<Vec<_>>();
            let weights = softmax(&scores);
            let sum = |element: usize| {
                seen.iter().zip(&weights).map(|(entry, weight)| weight * entry[element]).sum()
            };
            (0..rank).map(sum).collect()
        })
    }
}

/// The `count` positions up to each token's own, of the last ones of each `rate`, with the highest scores of
/// their keys.
pub(super) fn best_positions(
    [query, key, weights]: [&Tensor; 3],
    count: usize,
    rate: usize,
) -> Vec<Vec<usize>> {
    let (heads, queries) = (query.shape[1], query.rows().collect::<Vec<_>>());
    let keys = key.rows().collect::<Vec<_>>();
    let of = |(token, weights): (usize, &[f32])| {
        let score = |key: &&[f32]| {
            let products = queries[token * heads..][..heads].iter().map(|query| dot(query, key).max(0.0));
            products.zip(weights).map(|(product, weight)| product * weight).sum()
        };
        let seen = keys[..=token].iter().skip(rate - 1).step_by(rate);
        let best = largest(&seen.map(score).collect::<Vec<f32>>(), count);
        best.into_iter().map(|index| index * rate + rate - 1).collect()
    };
    weights.rows().enumerate().map(of).collect()
}
