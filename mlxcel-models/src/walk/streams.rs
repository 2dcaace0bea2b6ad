//! Several residual streams.

use super::{Ops, Stream, read_input, scaled};
use crate::decoder::{Activation, AltUp, HyperConnection, Laurel, StreamMixer, Streams};

/// The streams of the embedded tokens `x`, all of them.
pub(super) fn split<O: Ops>(streams: &Streams, x: &O::Value, ops: &mut O) -> Result<Vec<O::Value>, O::Error> {
    let (projections, least) = match streams {
        Streams::Predicted { projections, merges: _, least } => (projections, least),
        Streams::Connected(mixer) => return Ok(vec![x.clone(); mixer.streams]),
    };
    let mut all = vec![x.clone()];
    for projection in projections {
        let projected = ops.linear(x, projection)?;
        all.push(matched(&projected, x, *least, ops)?);
    }
    Ok(all)
}

/// What goes on of all streams behind the last layer.
pub(super) fn merge<O: Ops>(streams: &Streams, all: &[O::Value], ops: &mut O) -> Result<O::Value, O::Error> {
    let (merges, least) = match streams {
        Streams::Predicted { projections: _, merges, least } => (merges, least),
        Streams::Connected(mixer) => {
            let weights = beside(mixer, all, ops)?;
            let weights = mix(mixer, &weights, [0, 0, mixer.streams], ops)?;
            return weighted(mixer, all, &weights, ops);
        }
    };
    let Some((first, others)) = all.split_first() else { unreachable!("there is a first stream") };
    let mut sum = first.clone();
    for (other, merge) in others.iter().zip(merges) {
        let projected = ops.linear(other, merge)?;
        let own = matched(&projected, first, *least, ops)?;
        sum = ops.add(&sum, &own)?;
    }
    ops.scale(&sum, (all.len() as f32).recip())
}

/// `x` with the magnitude of `like`.
fn matched<O: Ops>(x: &O::Value, like: &O::Value, least: f32, ops: &mut O) -> Result<O::Value, O::Error> {
    let squares = ops.multiply(like, like)?;
    let wanted = ops.mean(&squares)?;
    let wanted = ops.sqrt(&wanted)?;
    let squares = ops.multiply(x, x)?;
    let own = ops.mean(&squares)?;
    let own = ops.clamp(&own, least, f32::INFINITY)?;
    let own = ops.sqrt(&own)?;
    let factor = ops.divide(&wanted, &own)?;
    ops.multiply(x, &factor)
}

/// The modalities of `x`: `[tokens, streams]`.
fn modalities<O: Ops>(altup: &AltUp, x: &O::Value, ops: &mut O) -> Result<O::Value, O::Error> {
    let normed = ops.norm(x, &altup.norm)?;
    let normed = scaled(normed, altup.input_scale, ops)?;
    let routed = ops.linear(&normed, &altup.router)?;
    ops.activate(&routed, Activation::Tanh)
}

/// Predicts all streams; the active one is what blocks go on with.
pub(super) fn predict<O: Ops>(
    altup: &AltUp,
    stream: &mut Stream<O::Value>,
    ops: &mut O,
) -> Result<(), O::Error> {
    let count = stream.all.len();
    let own = modalities(altup, &stream.all[altup.active], ops)?;
    let factors = ops.linear(&own, &altup.prediction)?;
    let mut predicted = Vec::with_capacity(count);
    for (to, before) in stream.all.iter().enumerate() {
        let places = to * count..;
        predicted.push(add_weighted(before.clone(), &stream.all, &factors, places, ops)?);
    }
    stream.hidden = predicted[altup.active].clone();
    stream.all = predicted;
    Ok(())
}

/// Corrects all streams by what blocks have made of the active one.
pub(super) fn correct<O: Ops>(
    altup: &AltUp,
    stream: &mut Stream<O::Value>,
    ops: &mut O,
) -> Result<(), O::Error> {
    let own = modalities(altup, &stream.hidden, ops)?;
    let factors = ops.linear(&own, &altup.correction)?;
    let factors = ops.offset(&factors, 1.0)?;
    let before = ops.scale(&stream.all[altup.active], -1.0)?;
    let news = ops.add(&stream.hidden, &before)?;
    for (index, other) in stream.all.iter_mut().enumerate() {
        let factor = ops.slice(&factors, index, index + 1)?;
        let part = ops.multiply(&news, &factor)?;
        *other = ops.add(other, &part)?;
    }
    let mut active = stream.all[altup.active].clone();
    if let Some(factors) = altup.output_scale {
        let factors = ops.vector(factors)?;
        active = ops.multiply(&active, &factors)?;
    }
    let input = read_input(&altup.input, &active, stream.inputs.as_ref(), ops)?;
    let input = ops.norm(&input, &altup.input_norm)?;
    for other in stream.all.iter_mut().skip(1) {
        *other = ops.add(other, &input)?;
    }
    Ok(())
}

/// The stream `x` with the residual of low rank of what an operation has read.
pub(super) fn augment<O: Ops>(
    laurel: &Laurel,
    x: &O::Value,
    read: &O::Value,
    ops: &mut O,
) -> Result<O::Value, O::Error> {
    let Laurel { left, right, norm, scale } = laurel;
    let narrow = ops.linear(read, left)?;
    let wide = ops.linear(&narrow, right)?;
    let normed = ops.norm(&wide, norm)?;
    let sum = ops.add(x, read)?;
    let sum = ops.add(&sum, &normed)?;
    scaled(sum, *scale, ops)
}

/// How a block's result goes into all streams.
pub(super) struct Mixes<V> {
    /// A factor of the result for each stream, `[tokens, streams]`.
    result: V,
    /// `[tokens, streams²]`: how much of each stream goes into each, for one stream after the other.
    streams: V,
}

impl<V> Mixes<V> {
    /// Those of the wanted tokens.
    pub(super) fn select<O: Ops<Value = V>>(self, ops: &mut O) -> Result<Self, O::Error> {
        Ok(Self { result: ops.select(&self.result)?, streams: ops.select(&self.streams)? })
    }
}

/// Lets a block read a weighted sum of all streams.
pub(super) fn collapse<O: Ops>(
    connection: &HyperConnection,
    stream: &mut Stream<O::Value>,
    ops: &mut O,
) -> Result<Mixes<O::Value>, O::Error> {
    let HyperConnection { mixer, iterations } = connection;
    let count = mixer.streams;
    let all = beside(mixer, &stream.all, ops)?;
    let read = mix(mixer, &all, [0, 0, count], ops)?;
    stream.hidden = weighted(mixer, &stream.all, &read, ops)?;
    let result = mix(mixer, &all, [1, count, 2 * count], ops)?;
    let result = ops.activate(&result, Activation::Sigmoid)?;
    let result = ops.scale(&result, 2.0)?;
    let streams = mix(mixer, &all, [2, 2 * count, (2 + count) * count], ops)?;
    let streams = ops.split_heads(&streams, count)?;
    let streams = ops.softmax(&streams)?;
    let streams = ops.offset(&streams, mixer.epsilon)?;
    let streams = ops.balance(&streams, mixer.epsilon, *iterations)?;
    Ok(Mixes { result, streams: ops.join_heads(&streams)? })
}

/// Adds the `result` of a block to all streams, mixed.
pub(super) fn expand<O: Ops>(
    mixes: &Mixes<O::Value>,
    result: &O::Value,
    stream: &mut Stream<O::Value>,
    ops: &mut O,
) -> Result<(), O::Error> {
    let count = stream.all.len();
    let mut mixed = Vec::with_capacity(count);
    for to in 0..count {
        let factor = ops.slice(&mixes.result, to, to + 1)?;
        let result = ops.multiply(result, &factor)?;
        let places = (to..).step_by(count);
        mixed.push(add_weighted(result, &stream.all, &mixes.streams, places, ops)?);
    }
    stream.all = mixed;
    Ok(())
}

/// All mixes before factors and summands, `[tokens, mixes]`.
fn beside<O: Ops>(mixer: &StreamMixer, all: &[O::Value], ops: &mut O) -> Result<O::Value, O::Error> {
    let beside = ops.concatenate(all)?;
    let normed = ops.norm(&beside, &mixer.norm)?;
    ops.linear(&normed, &mixer.projection)
}

/// The mixes `start..end`, which are of the kind `kind`, of [`beside`].
fn mix<O: Ops>(
    mixer: &StreamMixer,
    all: &O::Value,
    [kind, start, end]: [usize; 3],
    ops: &mut O,
) -> Result<O::Value, O::Error> {
    let part = ops.slice(all, start, end)?;
    let scale = ops.vector(mixer.scale)?;
    let scale = ops.slice(&scale, kind, kind + 1)?;
    let base = ops.vector(mixer.base)?;
    let base = ops.slice(&base, start, end)?;
    let scaled = ops.multiply(&part, &scale)?;
    ops.add(&scaled, &base)
}

/// The sum of all streams, weighted by the sigmoids of `mixes`.
fn weighted<O: Ops>(
    mixer: &StreamMixer,
    all: &[O::Value],
    mixes: &O::Value,
    ops: &mut O,
) -> Result<O::Value, O::Error> {
    let weights = ops.activate(mixes, Activation::Sigmoid)?;
    let weights = ops.offset(&weights, mixer.epsilon)?;
    let Some((first, others)) = all.split_first() else { unreachable!("there is a first stream") };
    let weight = ops.slice(&weights, 0, 1)?;
    let first = ops.multiply(first, &weight)?;
    add_weighted(first, others, &weights, 1.., ops)
}

/// `sum` plus the `streams`, each times the element of `factors` at its place.
fn add_weighted<O: Ops>(
    sum: O::Value,
    streams: &[O::Value],
    factors: &O::Value,
    places: impl Iterator<Item = usize>,
    ops: &mut O,
) -> Result<O::Value, O::Error> {
    streams.iter().zip(places).try_fold(sum, |sum, (stream, at)| {
        let factor = ops.slice(factors, at, at + 1)?;
        let part = ops.multiply(stream, &factor)?;
        ops.add(&sum, &part)
    })
}
