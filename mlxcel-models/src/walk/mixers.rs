//! Mixers.

use super::{Ops, compressed, latent, scaled, shifted};
use crate::decoder::{
    Activation, Attention, AttentionCore, Decay, DecayScope, DeltaRule, HeadNorm, HeadSharing, Linear, Mixer,
    NormScope, Projection, SelectiveScan, SharedAttention, ShortConvolution, StateSlot, StateSpace,
    StateSpaceScales,
};

/// What `mixer` makes of its input. Where it is the `last` of the network, only the wanted tokens come out.
/// `first_values` are those of the first mixer whose values later ones read, once it has run.
pub(super) fn mix<O: Ops>(
    mixer: &Mixer,
    x: &O::Value,
    slots: &[StateSlot],
    last: bool,
    first_values: &mut Option<O::Value>,
    ops: &mut O,
) -> Result<O::Value, O::Error> {
    // A walk has as many slots for a mixer as the mixer has states.
    match (mixer, slots) {
        (Mixer::Attention(mixer), &[]) => attend(mixer, x, None, last, ops),
        (Mixer::Attention(mixer), &[slot]) => attend(mixer, x, Some(slot), last, ops),
        (Mixer::Shared(mixer), &[slot]) => attend_shared(mixer, x, slot, last, ops),
        (Mixer::Latent(mixer), &[slot]) => latent::attend(mixer, x, (None, slot), last, ops),
        (Mixer::Latent(mixer), &[keys, slot]) => latent::attend(mixer, x, (Some(keys), slot), last, ops),
        (Mixer::Compressed(mixer), slots) => compressed::attend(mixer, x, slots, last, ops),
        (Mixer::ShortConvolution(mixer), &[slot]) => convolve(mixer, x, slot, last, ops),
        (Mixer::DeltaRule(mixer), &[inputs, state]) => delta_rule(mixer, x, [inputs, state], last, ops),
        (Mixer::StateSpace(mixer), &[inputs, state]) => state_space(mixer, x, [inputs, state], last, ops),
        (Mixer::SelectiveScan(mixer), &[inputs, state]) => {
            selective_scan(mixer, x, [inputs, state], last, ops)
        }
        (Mixer::GeneralizedDeltaRule(mixer), &[before, state]) => {
            shifted::delta_rule(mixer, x, [before, state], last, first_values, ops)
        }
        (Mixer::ShiftedMlp(mixer), &[slot]) => shifted::mlp(mixer, x, slot, last, ops),
        (mixer, slots) => unreachable!("{} slots for the states of {mixer:?}", slots.len()),
    }
}

pub(super) fn narrow<O: Ops>(x: O::Value, last: bool, ops: &mut O) -> Result<O::Value, O::Error> {
    if last { ops.select(&x) } else { Ok(x) }
}

/// What a mixer's results are multiplied by: an activated projection of its input.
pub(super) fn gate_of<O: Ops>(
    linear: &Linear,
    activation: Activation,
    x: &O::Value,
    last: bool,
    ops: &mut O,
) -> Result<O::Value, O::Error> {
    let x = narrow(x.clone(), last, ops)?;
    let gate = ops.linear(&x, linear)?;
    ops.activate(&gate, activation)
}

fn attend<O: Ops>(
    attention: &Attention,
    x: &O::Value,
    slot: Option<StateSlot>,
    last: bool,
    ops: &mut O,
) -> Result<O::Value, O::Error> {
    let Attention {
        query_heads,
        kv_heads,
        head_dim,
        value_dim,
        query,
        key,
        value,
        value_scale,
        output,
        query_norm,
        key_norm,
        value_norm,
        clip,
        gate,
        gate_activation,
        output_norm,
        core,
    } = attention;
    let rope = core.rope.as_ref();
    // Norms that come after the rotation leave none to the attention.
    let rotated_here = query_norm.iter().chain(key_norm).any(|norm| norm.scope == NormScope::RotatedHead);
    let unrotated = without_rope(core);
    let core = if rotated_here { &unrotated } else { core };
    let projected_query = ops.linear(x, query)?;
    let projected_key = ops.linear(x, key)?;
    let projected_value = if value == key { projected_key.clone() } else { ops.linear(x, value)? };
    let mut heads = |projected: O::Value, heads: usize, norm: Option<&HeadNorm>, rotated: bool| {
        let mut x = projected;
        x = match norm {
            Some(HeadNorm { norm, scope: NormScope::Full }) => {
                let normed = ops.norm(&x, norm)?;
                ops.split_heads(&normed, heads)?
            }
            Some(HeadNorm { norm, scope: NormScope::Head }) => {
                let split = ops.split_heads(&x, heads)?;
                ops.norm(&split, norm)?
            }
            Some(HeadNorm { norm: _, scope: NormScope::RotatedHead }) | None => ops.split_heads(&x, heads)?,
        };
        if let Some(most) = *clip {
            x = ops.clamp(&x, -most, most)?;
        }
        if let Some(rope) = rope.filter(|rope| rotated && rope.interleaved) {
            x = ops.deinterleave(&x, rope.rotary_dim)?;
        }
        if let Some(rope) = rope.filter(|_| rotated && rotated_here) {
            x = ops.rotate(&x, rope)?;
        }
        match norm {
            Some(HeadNorm { norm, scope: NormScope::RotatedHead }) => ops.norm(&x, norm),
            _ => Ok(x),
        }
    };
    let value_norm = value_norm.map(|norm| HeadNorm { norm, scope: NormScope::Head });
    let mut query = heads(projected_query, *query_heads, query_norm.as_ref(), true)?;
    let mut key = heads(projected_key, *kv_heads, key_norm.as_ref(), true)?;
    let mut value = heads(projected_value, *kv_heads, value_norm.as_ref(), false)?;
    value = scaled(value, *value_scale, ops)?;
    if let Some(scale) = &core.query_scale {
        query = ops.scale_by_position(&query, scale)?;
    }
    let kept = attention.kept_dim();
    for (x, width) in [(&mut query, *head_dim), (&mut key, *head_dim), (&mut value, *value_dim)] {
        *x = widened(x.clone(), width, kept, ops)?;
    }
    let is_plain = gate.is_none() && output_norm.is_none() && *value_dim == kept;
    let reader = is_plain.then_some(output);
    let mixed = match slot {
        Some(slot) => ops.attention(&query, &key, &value, core, reader, slot)?,
        None => ops.bidirectional_attention(&query, &key, &value, core, reader)?,
    };
    let mut mixed = narrow(mixed, last, ops)?;
    if *value_dim < kept {
        let split = ops.split_heads(&mixed, *query_heads)?;
        let split = ops.slice(&split, 0, *value_dim)?;
        mixed = ops.join_heads(&split)?;
    }
    if let Some(gate) = gate {
        let by_head = gate.outputs == *query_heads;
        let mut gate = gate_of(gate, *gate_activation, x, last, ops)?;
        if by_head {
            gate = ops.split_heads(&gate, *query_heads)?;
            mixed = ops.split_heads(&mixed, *query_heads)?;
        }
        mixed = ops.multiply(&mixed, &gate)?;
        if by_head {
            mixed = ops.join_heads(&mixed)?;
        }
    }
    if let Some(norm) = output_norm {
        mixed = ops.norm(&mixed, norm)?;
    }
    ops.linear(&mixed, output)
}

/// Heads (`[tokens, heads, width]`) with zeros behind their elements, so that they are `wanted` wide.
fn widened<O: Ops>(x: O::Value, width: usize, wanted: usize, ops: &mut O) -> Result<O::Value, O::Error> {
    let mut parts = vec![x.clone()];
    let mut missing = wanted.saturating_sub(width);
    while missing > 0 {
        let some = missing.min(width);
        let part = ops.slice(&x, 0, some)?;
        parts.push(ops.scale(&part, 0.0)?);
        missing -= some;
    }
    if parts.len() == 1 { Ok(x) } else { ops.concatenate(&parts) }
}

fn attend_shared<O: Ops>(
    shared: &SharedAttention,
    x: &O::Value,
    slot: StateSlot,
    last: bool,
    ops: &mut O,
) -> Result<O::Value, O::Error> {
    let SharedAttention { query_heads, head_dim: _, query, output, query_norm, source: _, core } = shared;
    let query = ops.linear(x, query)?;
    let mut query = ops.split_heads(&query, *query_heads)?;
    if let Some(norm) = query_norm {
        query = ops.norm(&query, norm)?;
    }
    if let Some(rope) = core.rope.as_ref().filter(|rope| rope.interleaved) {
        query = ops.deinterleave(&query, rope.rotary_dim)?;
    }
    if let Some(scale) = &core.query_scale {
        query = ops.scale_by_position(&query, scale)?;
    }
    let mixed = ops.shared_attention(&query, core, Some(output), slot)?;
    let mixed = narrow(mixed, last, ops)?;
    ops.linear(&mixed, output)
}

/// The same without a rotary embedding.
fn without_rope(core: &AttentionCore) -> AttentionCore {
    AttentionCore { rope: None, ..core.clone() }
}

fn convolve<O: Ops>(
    mixer: &ShortConvolution,
    x: &O::Value,
    slot: StateSlot,
    last: bool,
    ops: &mut O,
) -> Result<O::Value, O::Error> {
    let ShortConvolution { input, convolution, output } = mixer;
    let width = convolution.channels;
    let parts = ops.linear(x, input)?;
    let b = ops.slice(&parts, 0, width)?;
    let c = ops.slice(&parts, width, 2 * width)?;
    let x = ops.slice(&parts, 2 * width, 3 * width)?;
    let gated = ops.multiply(&b, &x)?;
    let mixed = ops.convolve(&gated, convolution, slot)?;
    let mixed = ops.multiply(&c, &mixed)?;
    let mixed = narrow(mixed, last, ops)?;
    ops.linear(&mixed, output)
}

fn delta_rule<O: Ops>(
    mixer: &DeltaRule,
    x: &O::Value,
    [inputs, state]: [StateSlot; 2],
    last: bool,
    ops: &mut O,
) -> Result<O::Value, O::Error> {
    /// What is added to the square of a key's length, as in the authors' kernels.
    const EPSILON: f32 = 1e-6;
    let DeltaRule {
        key_heads,
        value_heads,
        sharing,
        key_dim,
        value_dim,
        query,
        key,
        value,
        gate,
        gate_activation,
        beta,
        beta_scale,
        alpha,
        convolution,
        alpha_bias,
        decay,
        decay_form,
        decay_scope,
        norm,
        output,
    } = mixer;
    let parts = [query, key, value].into_iter().map(|linear| ops.linear(x, linear));
    let parts = parts.collect::<Result<Vec<_>, _>>()?;
    let parts = ops.concatenate(&parts)?;
    let parts = ops.convolve(&parts, convolution, inputs)?;
    let (keys, values) = (key_heads * key_dim, value_heads * value_dim);
    let mut query = ops.slice(&parts, 0, keys)?;
    let mut key = ops.slice(&parts, keys, 2 * keys)?;
    let mut heads = *key_heads;
    if *sharing == HeadSharing::Turns && value_heads > key_heads {
        let times = value_heads / key_heads;
        query = ops.concatenate(&vec![query; times])?;
        key = ops.concatenate(&vec![key; times])?;
        heads = *value_heads;
    }
    let query = ops.split_heads(&query, heads)?;
    let query = ops.unit_norm(&query, EPSILON)?;
    let query = ops.scale(&query, (*key_dim as f64).powf(-0.5) as f32)?;
    let key = ops.split_heads(&key, heads)?;
    let key = ops.unit_norm(&key, EPSILON)?;
    let value = ops.slice(&parts, 2 * keys, 2 * keys + values)?;
    let value = ops.split_heads(&value, *value_heads)?;

    let beta = ops.linear(x, beta)?;
    let beta = ops.activate(&beta, Activation::Sigmoid)?;
    let beta = scaled(beta, *beta_scale, ops)?;
    let alpha = project(alpha, x, ops)?;
    let bias = ops.vector(*alpha_bias)?;
    let mut alpha = ops.add(&alpha, &bias)?;
    let rate = ops.vector(*decay)?;
    let mut rate = ops.exp(&rate)?;
    if *decay_scope == DecayScope::Channel {
        alpha = ops.split_heads(&alpha, *value_heads)?;
        rate = ops.split_heads(&rate, *value_heads)?;
    }
    let decay = match decay_form {
        Decay::Softplus => {
            let alpha = ops.activate(&alpha, Activation::Softplus)?;
            let rate = ops.scale(&rate, -1.0)?;
            ops.multiply(&alpha, &rate)?
        }
        Decay::Bounded { bound } => {
            let steep = ops.multiply(&alpha, &rate)?;
            let part = ops.activate(&steep, Activation::Sigmoid)?;
            ops.scale(&part, *bound)?
        }
    };

    let mixed = ops.delta_rule(&query, &key, &value, &decay, &beta, state)?;
    let mixed = narrow(mixed, last, ops)?;
    let x = narrow(x.clone(), last, ops)?;
    let normed = ops.norm(&mixed, norm)?;
    let normed = ops.join_heads(&normed)?;
    let gate = project(gate, &x, ops)?;
    let gate = ops.activate(&gate, *gate_activation)?;
    let gated = ops.multiply(&normed, &gate)?;
    ops.linear(&gated, output)
}

pub(super) fn project<O: Ops>(
    projection: &Projection,
    x: &O::Value,
    ops: &mut O,
) -> Result<O::Value, O::Error> {
    match projection {
        Projection::Direct(linear) => ops.linear(x, linear),
        Projection::Narrow { down, activation, up } => {
            let mut middle = ops.linear(x, down)?;
            if let Some(activation) = activation {
                middle = ops.activate(&middle, *activation)?;
            }
            ops.linear(&middle, up)
        }
    }
}

fn state_space<O: Ops>(
    mixer: &StateSpace,
    x: &O::Value,
    [inputs, state]: [StateSlot; 2],
    last: bool,
    ops: &mut O,
) -> Result<O::Value, O::Error> {
    let StateSpace {
        heads,
        head_dim,
        groups,
        state_size,
        gate,
        input,
        dt,
        scales: StateSpaceScales { gate: gate_scale, input: input_scales, dt: dt_scale },
        convolution,
        dt_bias,
        dt_limits,
        decay,
        skip,
        norm,
        norm_first,
        output,
    } = mixer;
    let (width, shared) = (heads * head_dim, groups * state_size);
    let mut parts = ops.linear(x, input)?;
    if *input_scales != [1.0; 3] {
        let ends = [0, width, width + shared, width + 2 * shared];
        let scaled = input_scales.iter().zip(ends.windows(2)).map(|(scale, ends)| {
            let part = ops.slice(&parts, ends[0], ends[1])?;
            ops.scale(&part, *scale)
        });
        let scaled = scaled.collect::<Result<Vec<_>, _>>()?;
        parts = ops.concatenate(&scaled)?;
    }
    let parts = ops.convolve(&parts, convolution, inputs)?;
    let own = ops.slice(&parts, 0, width)?;
    let own = ops.split_heads(&own, *heads)?;
    let b = ops.slice(&parts, width, width + shared)?;
    let b = ops.split_heads(&b, *groups)?;
    let c = ops.slice(&parts, width + shared, width + 2 * shared)?;
    let c = ops.split_heads(&c, *groups)?;

    let dt = ops.linear(x, dt)?;
    let dt = scaled(dt, *dt_scale, ops)?;
    let bias = ops.vector(*dt_bias)?;
    let dt = ops.add(&dt, &bias)?;
    let dt = ops.activate(&dt, Activation::Softplus)?;
    let dt = ops.clamp(&dt, dt_limits.0, dt_limits.1)?;
    let rate = negative_exp(*decay, ops)?;

    let mixed = ops.state_space(&own, &dt, &rate, &b, &c, state)?;
    let skip = ops.vector(*skip)?;
    let skip = ops.split_heads(&skip, *heads)?;
    let skipped = ops.multiply(&own, &skip)?;
    let mixed = ops.add(&mixed, &skipped)?;
    let mixed = ops.join_heads(&mixed)?;
    let mixed = narrow(mixed, last, ops)?;
    let x = narrow(x.clone(), last, ops)?;
    let gate = ops.linear(&x, gate)?;
    let gate = scaled(gate, *gate_scale, ops)?;
    let gate = ops.activate(&gate, Activation::Silu)?;
    let normed = |x: O::Value, ops: &mut O| match norm {
        Some(norm) => {
            let split = ops.split_heads(&x, width / norm.width)?;
            let normed = ops.norm(&split, norm)?;
            ops.join_heads(&normed)
        }
        None => Ok(x),
    };
    let gated = if *norm_first {
        let mixed = normed(mixed, ops)?;
        ops.multiply(&mixed, &gate)?
    } else {
        let gated = ops.multiply(&mixed, &gate)?;
        normed(gated, ops)?
    };
    ops.linear(&gated, output)
}

fn selective_scan<O: Ops>(
    mixer: &SelectiveScan,
    x: &O::Value,
    [inputs, state]: [StateSlot; 2],
    last: bool,
    ops: &mut O,
) -> Result<O::Value, O::Error> {
    let SelectiveScan {
        channels,
        state_size: _,
        input,
        gate,
        convolution,
        rank,
        state_input,
        state_output,
        norms,
        step,
        decay,
        skip,
        output,
    } = mixer;
    let own = ops.linear(x, input)?;
    let own = ops.convolve(&own, convolution, inputs)?;
    let part = |which: usize, linear: &Linear, ops: &mut O| {
        let part = ops.linear(&own, linear)?;
        match norms {
            Some(norms) => ops.norm(&part, &norms[which]),
            None => Ok(part),
        }
    };
    let dt = part(0, rank, ops)?;
    let dt = ops.linear(&dt, step)?;
    let dt = ops.activate(&dt, Activation::Softplus)?;
    let b = part(1, state_input, ops)?;
    let b = ops.split_heads(&b, 1)?;
    let c = part(2, state_output, ops)?;
    let c = ops.split_heads(&c, 1)?;
    let rate = negative_exp(*decay, ops)?;
    let rate = ops.split_heads(&rate, *channels)?;
    let split = ops.split_heads(&own, *channels)?;
    let mixed = ops.state_space(&split, &dt, &rate, &b, &c, state)?;
    let mixed = ops.join_heads(&mixed)?;
    let skip = ops.vector(*skip)?;
    let skipped = ops.multiply(&own, &skip)?;
    let mixed = ops.add(&mixed, &skipped)?;
    let mixed = narrow(mixed, last, ops)?;
    let gate = gate_of(gate, Activation::Silu, x, last, ops)?;
    let gated = ops.multiply(&mixed, &gate)?;
    ops.linear(&gated, output)
}

/// `−exp(weight)`, `[1, n]`.
fn negative_exp<O: Ops>(weight: crate::decoder::WeightId, ops: &mut O) -> Result<O::Value, O::Error> {
    let weight = ops.vector(weight)?;
    let rate = ops.exp(&weight)?;
    ops.scale(&rate, -1.0)
}
