//! Several residual streams.

use super::{Ops, Stream, read_input, scaled};
use crate::decoder::{Activation, AltUp, Laurel, Streams};

/// The streams of the embedded tokens `x`, all of them.
pub(super) fn split<O: Ops>(streams: &Streams, x: &O::Value, ops: &mut O) -> Result<Vec<O::Value>, O::Error> {
    let Streams { projections, merges: _, least } = streams;
    let mut all = vec![x.clone()];
    for projection in projections {
        let projected = ops.linear(x, projection)?;
        all.push(matched(&projected, x, *least, ops)?);
    }
    Ok(all)
}

/// What goes on of all streams behind the last layer.
pub(super) fn merge<O: Ops>(streams: &Streams, all: &[O::Value], ops: &mut O) -> Result<O::Value, O::Error> {
    let Streams { projections: _, merges, least } = streams;
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
        let mut sum = before.clone();
        for (from, other) in stream.all.iter().enumerate() {
            let at = to * count + from;
            let factor = ops.slice(&factors, at, at + 1)?;
            let part = ops.multiply(other, &factor)?;
            sum = ops.add(&sum, &part)?;
        }
        predicted.push(sum);
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
