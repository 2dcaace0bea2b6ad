//! Latent attention.

use super::mixers::{gate_of, narrow};
use super::{Ops, scaled};
use crate::decoder::{Activation, LatentAttention, LatentQuery, StateSlot};

/// What `latent` makes of its input, as [`mix`](super::mixers::mix) does.
pub(super) fn attend<O: Ops>(
    latent: &LatentAttention,
    x: &O::Value,
    slot: StateSlot,
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
    } = latent;
    let query = match query {
        LatentQuery::Direct(query) => ops.linear(x, query)?,
        LatentQuery::Compressed { down, norm, up } => {
            let narrow = ops.linear(x, down)?;
            let narrow = ops.norm(&narrow, norm)?;
            ops.linear(&narrow, up)?
        }
    };
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
    let mixed = ops.latent_attention(&query, &entry, latent, slot)?;
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
