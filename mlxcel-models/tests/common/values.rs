//! The values of weights in float32.

use std::borrow::Cow;

use mlxcel_core::Result;
use mlxcel_models::packing::{Part, decode_row};
use mlxcel_models::read::Float;
use mlxcel_models::{Checkpoint, ElementType, WeightRef};

/// The values of a weight, of a packed one with columns in the order of the layer's inputs.
pub(crate) fn values(checkpoint: &Checkpoint, weight: &WeightRef) -> Result<Vec<f32>> {
    let Some(packed) = &weight.packed else {
        let view = checkpoint.weight(weight)?;
        return Ok(floats(view.element_type, &view.bytes));
    };
    let columns = *weight.shape.last().unwrap();
    let rows = weight.elements() / columns;
    let mut parts = vec![checkpoint.weight(weight)?.bytes];
    let mut order: Vec<usize> = (0..columns).collect();
    for (part, tensor) in packed.named() {
        let bytes = checkpoint.weight(tensor)?.bytes;
        if part == Part::Order {
            order =
                bytes.chunks_exact(4).map(|at| i32::from_le_bytes(at.try_into().unwrap()) as usize).collect();
        } else {
            parts.push(bytes);
        }
    }
    let mut values = vec![0.0; weight.elements()];
    let mut decoded = vec![0.0; columns];
    for (index, row) in values.chunks_exact_mut(columns).enumerate() {
        let of_row = |bytes: &Cow<'_, [u8]>| bytes.len() / rows * index..bytes.len() / rows * (index + 1);
        let parts: Vec<_> = parts.iter().map(|bytes| &bytes[of_row(bytes)]).collect();
        decode_row(&packed.packing, &parts, &mut decoded)?;
        order.iter().zip(&decoded).for_each(|(&input, &value)| row[input] = value);
    }
    Ok(values)
}

fn floats(element: ElementType, bytes: &[u8]) -> Vec<f32> {
    let float = Float::of(element).unwrap_or_else(|| panic!("{element} is in no fixture"));
    let mut values = vec![0.0; bytes.len() / float.bytes()];
    float.read(bytes, &mut values);
    values
}
