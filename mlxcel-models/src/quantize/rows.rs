//! The rows of a weight as numbers, however it is stored.

use std::ops::Range;

use mlxcel_core::{Error, ErrorKind, Result};

use super::OPERATION;
use super::float::Float;
use crate::checkpoint::{Checkpoint, TensorView};
use crate::decoder::WeightRef;
use crate::packing::{Packing, Part, decode_row};

/// A weight, all of whose dimensions but the innermost are rows.
pub(super) struct Rows {
    weight: WeightRef,
    /// The dimensions of the weight.
    pub(super) shape: Vec<usize>,
    /// Of a weight that is packed with its inputs in another order, for each column its input.
    order: Option<Vec<usize>>,
    storage: Storage,
}

enum Storage {
    Dense(Float),
    Packed(Packing),
}

/// What reading needs besides room for the values.
#[derive(Default)]
pub(super) struct Scratch {
    parts: Vec<Vec<u8>>,
    row: Vec<f32>,
}

impl Rows {
    /// Rows of `weight`, if it is dense floats or packed.
    pub(super) fn new(checkpoint: &Checkpoint, weight: WeightRef) -> Result<Option<Self>> {
        let storage = match weight.packing() {
            Some(packing) => Storage::Packed(packing),
            None => match Float::of(weight.element) {
                Some(float) => Storage::Dense(float),
                None => return Ok(None),
            },
        };
        let order = weight
            .packed
            .as_ref()
            .and_then(|packed| packed.named().find(|(part, _)| *part == Part::Order).map(|(_, order)| order));
        let order = order.map(|order| input_order(checkpoint, &weight, order)).transpose()?;
        Ok(Some(Self { shape: weight.shape.clone(), weight, order, storage }))
    }

    /// How many values a row has.
    pub(super) fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// How many rows there are.
    pub(super) fn count(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }

    /// The type that values are rounded to where they are stored: the weight's own, or of one that is packed the one that its scales
    /// are floats of. `activations` where that is wider than what the model computes in.
    pub(super) fn float(&self, activations: Float) -> Float {
        let own = match self.storage {
            Storage::Dense(float) => return float,
            Storage::Packed(packing) => Float::of(packing.value_type()),
        };
        own.filter(|own| *own != Float::F32).unwrap_or(activations)
    }

    /// The type in which values are exact: the weight's own, and single precision where it is packed.
    pub(super) fn exact(&self) -> Float {
        match self.storage {
            Storage::Dense(float) => float,
            Storage::Packed(_) => Float::F32,
        }
    }

    /// Bytes of all of it as it is stored.
    pub(super) fn bytes(&self) -> u64 {
        self.weight.tensors().map(|part| part.byte_len() as u64).sum()
    }

    /// The weight's first tensor, as errors name it.
    pub(super) fn name(&self) -> &str {
        &self.weight.tensor
    }

    /// Writes the values of consecutive rows, as the layer sees them, to `values`, which is as long as they are.
    pub(super) fn read(
        &self,
        checkpoint: &Checkpoint,
        rows: Range<usize>,
        scratch: &mut Scratch,
        values: &mut [f32],
    ) -> Result<()> {
        let count = rows.len();
        let Scratch { parts, row } = scratch;
        let mut used = 0;
        for part in self.weight.tensors().filter(|part| !self.is_order(part)) {
            let all: usize = part.shape.iter().rev().skip(1).product();
            let bytes = part.byte_len().checked_div(all).unwrap_or_default() * count;
            if parts.len() == used {
                parts.push(Vec::new());
            }
            parts[used].resize(bytes, 0);
            checkpoint.weight_rows(part, rows.clone(), &mut parts[used])?;
            used += 1;
        }
        let columns = self.columns();
        match self.storage {
            Storage::Dense(float) => float.read(parts.first().map_or(&[], Vec::as_slice), values),
            Storage::Packed(packing) => {
                let mut of_row: Vec<&[u8]> = Vec::with_capacity(used);
                for (index, values) in values.chunks_exact_mut(columns.max(1)).enumerate() {
                    of_row.clear();
                    of_row.extend(parts.iter().take(used).map(|part| {
                        let width = part.len() / count;
                        &part[index * width..(index + 1) * width]
                    }));
                    let Some(order) = &self.order else {
                        decode_row(&packing, &of_row, values)?;
                        continue;
                    };
                    row.resize(columns, 0.0);
                    decode_row(&packing, &of_row, row)?;
                    for (value, &input) in row.iter().zip(order) {
                        // The order has each input once.
                        values[input] = *value;
                    }
                }
            }
        }
        Ok(())
    }

    fn is_order(&self, part: &WeightRef) -> bool {
        let packed = self.weight.packed.iter();
        packed.flat_map(|packed| packed.named()).any(|(name, known)| name == Part::Order && known == part)
    }
}

/// Of each column the input that it belongs to.
fn input_order(checkpoint: &Checkpoint, weight: &WeightRef, order: &WeightRef) -> Result<Vec<usize>> {
    let view = checkpoint.weight(order)?;
    let columns = weight.shape.last().copied().unwrap_or_default();
    let inputs = view.bytes.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes));
    let inputs: Option<Vec<usize>> = inputs.map(|input| usize::try_from(input).ok()).collect();
    let mut seen = vec![false; columns];
    let is_order = |inputs: &Vec<usize>| {
        let mut first =
            |&input: &usize| seen.get_mut(input).is_some_and(|seen| !std::mem::replace(seen, true));
        inputs.len() == columns && inputs.iter().all(&mut first)
    };
    inputs.filter(is_order).ok_or_else(|| {
        Error::new(ErrorKind::Corrupt, OPERATION, "the order of its inputs does not have each of them once")
            .with_context("tensor", &weight.tensor)
    })
}

/// The whole tensor that `weight` is all or a part of, in its own shape.
pub(super) fn whole(checkpoint: &Checkpoint, weight: &WeightRef) -> Result<WeightRef> {
    let mut whole = weight.clone();
    let columns = whole.packing().and(weight.shape.last().copied());
    unselect(checkpoint, &mut whole, columns)?;
    if let Some(packed) = &mut whole.packed {
        let names: Vec<_> = packed.packing.parts().skip(1).collect();
        for (part, name) in packed.parts.iter_mut().zip(names) {
            if name != Part::Order {
                unselect(checkpoint, part, None)?;
            }
        }
    }
    Ok(whole)
}

/// Gives a weight, or a part, of one tensor that tensor's shape, with `columns` values in a row where these are packed.
fn unselect(checkpoint: &Checkpoint, weight: &mut WeightRef, columns: Option<usize>) -> Result<()> {
    let TensorView { shape, .. } = checkpoint.tensor(&weight.tensor)?;
    weight.selection = None;
    weight.shape = weight.derived.as_ref().map_or(shape, |derived| derived.shape.clone());
    if let (Some(columns), Some(last)) = (columns, weight.shape.last_mut()) {
        *last = columns;
    }
    Ok(())
}
