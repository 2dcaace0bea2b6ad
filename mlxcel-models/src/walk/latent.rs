//! Latent attention, and the selection of the positions that it sees.

use super::mixers::{gate_of, narrow};
use super::{Ops, scaled};
use crate::decoder::{Activation, Indexer, LatentAttention, LatentQuery, SparseAttention, StateSlot};
use crate::rope::Rope;

/// What `latent` makes of its input, as [`mix`](super::mixers::mix) does. Its positions are selected by the
/// keys at the first slot, if there is one.
pub(super) fn attend<O: Ops>(
    latent: &LatentAttention,
    x: &O::Value,
    (index_keys, slot): (Option<StateSlot>, StateSlot),
    last: bool,
    ops: &mut O,
) -> Result<O::Value, O::Error> {
    let LatentAttention {
        heads,
        plain_dim,
        rope_dim,
        value_dim: _,
        rank,
        query,
        down,
        norm,
        latent_scale,
        key_up,
        value_up,
        output,
        gate,
        scale: _,
        rope,
        query_scale,
        sparse,
    } = latent;
    let (query_input, query) = match query {
        LatentQuery::Direct(query) => (x.clone(), query),
        LatentQuery::Compressed { down, norm, up } => {
            let narrow = ops.linear(x, down)?;
            (ops.norm(&narrow, norm)?, up)
        }
    };
    if let (Some(SparseAttention::Indexed(indexer)), Some(slot)) = (sparse, index_keys) {
        select_positions(indexer, [x, &query_input], rope.as_ref(), slot, ops)?;
    }
    let query = ops.linear(&query_input, query)?;
    let mut query = ops.split_heads(&query, *heads)?;
    if let Some(scale) = query_scale {
        query = ops.scale_by_position(&query, scale)?;
    }
    let plain = ops.slice(&query, 0, *plain_dim)?;
    let mut rotary = ops.slice(&query, *plain_dim, plain_dim + rope_dim)?;
    let entry = ops.linear(x, down)?;
    let kept = ops.slice(&entry, 0, *rank)?;
    let kept = ops.norm(&kept, norm)?;
    let kept = scaled(kept, *latent_scale, ops)?;
    let mut key = ops.slice(&entry, *rank, rank + rope_dim)?;
    if rope.as_ref().is_some_and(|rope| rope.interleaved) {
        rotary = ops.deinterleave(&rotary, *rope_dim)?;
        let split = ops.split_heads(&key, 1)?;
        let split = ops.deinterleave(&split, *rope_dim)?;
        key = ops.join_heads(&split)?;
    }
    let absorbed = ops.head_linear(&plain, key_up)?;
    let query = ops.concatenate(&[absorbed, rotary])?;
    let entry = ops.concatenate(&[kept, key])?;
    let mixed = ops.latent_attention(&query, &entry, latent, slot, index_keys)?;
    let mixed = narrow(mixed, last, ops)?;
    let mut values = ops.head_linear(&mixed, value_up)?;
    if let Some(gate) = gate {
        let gate = gate_of(gate, Activation::Sigmoid, x, last, ops)?;
        let gate = ops.split_heads(&gate, *heads)?;
        values = ops.multiply(&values, &gate)?;
    }
    let values = ops.join_heads(&values)?;
    ops.linear(&values, output)
}

/// Selects positions by the input of a layer and the input of its queries.
fn select_positions<O: Ops>(
    indexer: &Indexer,
    [x, query_input]: [&O::Value; 2],
    rope: Option<&Rope>,
    slot: StateSlot,
    ops: &mut O,
) -> Result<(), O::Error> {
    let Indexer { heads, head_dim: _, count, query, key, key_norm, weights, scale, interleaved } = indexer;
    let query = ops.linear(query_input, query)?;
    let mut query = ops.split_heads(&query, *heads)?;
    let key = ops.linear(x, key)?;
    let key = ops.norm(&key, key_norm)?;
    let mut key = ops.split_heads(&key, 1)?;
    if let Some(rope) = rope {
        for part in [&mut query, &mut key] {
            if *interleaved {
                *part = ops.deinterleave(part, rope.rotary_dim)?;
            }
            *part = ops.rotate(part, rope)?;
        }
    }
    let weights = ops.linear(x, weights)?;
    let weights = ops.scale(&weights, *scale)?;
    ops.select_positions(&query, &key, &weights, (*count, 1), slot)
}
