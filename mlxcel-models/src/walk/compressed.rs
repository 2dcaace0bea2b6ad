//! Attention to a window and to compressed positions before it.

use super::mixers::narrow;
use super::{Entries, Ops};
use crate::decoder::{AttentionCore, CompressedAttention, Compressor, EntryIndexer, StateSlot};
use crate::rope::Rope;

/// What `attention` makes of its input, as [`mix`](super::mixers::mix) does.
pub(super) fn attend<O: Ops>(
    attention: &CompressedAttention,
    x: &O::Value,
    slots: &[StateSlot],
    last: bool,
    ops: &mut O,
) -> Result<O::Value, O::Error> {
    let CompressedAttention {
        query_heads,
        head_dim,
        query_down,
        latent_norm,
        query,
        query_norm,
        key,
        key_norm,
        output_down,
        output,
        core,
        compressor,
        indexer,
    } = attention;
    let rope = core.rope.as_ref();
    let latent = ops.linear(x, query_down)?;
    let latent = ops.norm(&latent, latent_norm)?;
    let query = ops.linear(&latent, query)?;
    let query = ops.split_heads(&query, *query_heads)?;
    let query = ops.norm(&query, query_norm)?;
    let query = rotate_last(&query, *head_dim, rope, ops)?;
    let key = ops.linear(x, key)?;
    let key = ops.norm(&key, key_norm)?;
    let key = ops.split_heads(&key, 1)?;
    let key = rotate_last(&key, *head_dim, rope, ops)?;

    let core = AttentionCore { rope: None, ..core.clone() };
    let mixed = match (compressor, indexer, slots) {
        (None, _, &[slot]) => ops.attention(&query, &key, &key, &core, None, slot)?,
        (Some(compressor), None, &[inputs, entries, slot]) => {
            let entry = compress(compressor, x, inputs, ops)?;
            let entries = Entries { entry, rate: compressor.rate, slot: entries, selected: None };
            ops.compressed_attention(&query, &key, &entries, &core, slot)?
        }
        (Some(compressor), Some(indexer), &[index_inputs, index_keys, inputs, entries, slot]) => {
            select(indexer, [x, &latent], rope, [index_inputs, index_keys], ops)?;
            let entry = compress(compressor, x, inputs, ops)?;
            let selected = Some(index_keys);
            let entries = Entries { entry, rate: compressor.rate, slot: entries, selected };
            ops.compressed_attention(&query, &key, &entries, &core, slot)?
        }
        (_, _, slots) => unreachable!("{} slots for the states of {attention:?}", slots.len()),
    };
    // Rotated back at every token, of which only then the wanted ones are left.
    let mixed = ops.split_heads(&mixed, *query_heads)?;
    let mixed = rotate_back(&mixed, *head_dim, rope, ops)?;
    let mixed = ops.join_heads(&mixed)?;
    let mixed = narrow(mixed, last, ops)?;
    let groups = ops.split_heads(&mixed, output_down.heads)?;
    let groups = ops.head_linear(&groups, output_down)?;
    let groups = ops.join_heads(&groups)?;
    ops.linear(&groups, output)
}

/// The entries of the windows that tokens are the last of, `[tokens, 1, width]`.
fn compress<O: Ops>(
    compressor: &Compressor,
    x: &O::Value,
    inputs: StateSlot,
    ops: &mut O,
) -> Result<O::Value, O::Error> {
    let value = ops.linear(x, &compressor.value)?;
    let gate = ops.linear(x, &compressor.gate)?;
    let both = ops.concatenate(&[value, gate])?;
    let entry = ops.compress(&both, compressor, inputs)?;
    let entry = ops.norm(&entry, &compressor.norm)?;
    let entry = ops.split_heads(&entry, 1)?;
    rotate_last(&entry, compressor.width, Some(&compressor.rope), ops)
}

/// Selects entries by the input of a layer and the latent of its queries.
fn select<O: Ops>(
    indexer: &EntryIndexer,
    [x, latent]: [&O::Value; 2],
    rope: Option<&Rope>,
    [inputs, keys]: [StateSlot; 2],
    ops: &mut O,
) -> Result<(), O::Error> {
    let EntryIndexer { heads, count, compressor, query, weights, scale } = indexer;
    let key = compress(compressor, x, inputs, ops)?;
    let query = ops.linear(latent, query)?;
    let query = ops.split_heads(&query, *heads)?;
    let query = rotate_last(&query, compressor.width, rope, ops)?;
    let weights = ops.linear(x, weights)?;
    let weights = ops.scale(&weights, *scale)?;
    ops.select_positions(&query, &key, &weights, (*count, compressor.rate), keys)
}

/// Heads (`[tokens, heads, width]`) with their last elements rotated, in halves.
fn rotate_last<O: Ops>(
    x: &O::Value,
    width: usize,
    rope: Option<&Rope>,
    ops: &mut O,
) -> Result<O::Value, O::Error> {
    turn_last(x, width, rope, ops, |last, rope, ops| {
        let last = if rope.interleaved { ops.deinterleave(&last, rope.rotary_dim)? } else { last };
        ops.rotate(&last, rope)
    })
}

/// The opposite of [`rotate_last`]. With halves that change places, the rotation is the other way round.
fn rotate_back<O: Ops>(
    x: &O::Value,
    width: usize,
    rope: Option<&Rope>,
    ops: &mut O,
) -> Result<O::Value, O::Error> {
    turn_last(x, width, rope, ops, |last, rope, ops| {
        let swapped = swap_halves(&last, rope, ops)?;
        let rotated = ops.rotate(&swapped, rope)?;
        let last = swap_halves(&rotated, rope, ops)?;
        if rope.interleaved { ops.interleave(&last) } else { Ok(last) }
    })
}

/// Heads whose last elements, as many as are rotated, become what `turn` makes of them.
fn turn_last<O: Ops>(
    x: &O::Value,
    width: usize,
    rope: Option<&Rope>,
    ops: &mut O,
    turn: impl FnOnce(O::Value, &Rope, &mut O) -> Result<O::Value, O::Error>,
) -> Result<O::Value, O::Error> {
    let Some(rope) = rope else { return Ok(x.clone()) };
    let first = width - rope.rotary_dim;
    if first == 0 {
        return turn(x.clone(), rope, ops);
    }
    let last = ops.slice(x, first, width)?;
    let last = turn(last, rope, ops)?;
    let first = ops.slice(x, 0, first)?;
    ops.concatenate(&[first, last])
}

fn swap_halves<O: Ops>(x: &O::Value, rope: &Rope, ops: &mut O) -> Result<O::Value, O::Error> {
    let half = rope.rotary_dim / 2;
    let low = ops.slice(x, 0, half)?;
    let high = ops.slice(x, half, 2 * half)?;
    ops.concatenate(&[high, low])
}
