//! Rows of packed weights as numbers, with columns in the order of the layer's inputs.

use std::ops::Range;

use mlxcel_core::{Error, ErrorKind, Result};

use crate::checkpoint::Checkpoint;
use crate::decoder::WeightRef;
use crate::packing::{Packing, Part, decode_row};

const OPERATION: &str = "unpack weight";

/// Reads a packed weight of a checkpoint as float32. All dimensions but the innermost count as rows.
#[derive(Clone, Debug)]
pub struct PackedRows {
    packing: Packing,
    /// The parts that have rows, in the order of [`Packing::parts`].
    parts: Vec<WeightRef>,
    /// For each column the input that it belongs to, where that is not its own place.
    order: Option<Vec<usize>>,
    columns: usize,
}

/// Scratch memory for reading, which can be reused.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    parts: Vec<Vec<u8>>,
    row: Vec<f32>,
}

impl Scratch {
    /// Room for `bytes` of the part `index`.
    pub(super) fn part(&mut self, index: usize, bytes: usize) -> &mut [u8] {
        if self.parts.len() <= index {
            self.parts.resize_with(index + 1, Vec::new);
        }
        self.parts[index].resize(bytes, 0);
        &mut self.parts[index]
    }
}

impl PackedRows {
    /// The rows of `weight`; `None` if it is not packed.
    ///
    /// # Errors
    ///
    /// The errors of [`Checkpoint::weight`]; [`Corrupt`](ErrorKind::Corrupt) for an [order](Part::Order) that
    /// is not a permutation.
    pub fn new(checkpoint: &Checkpoint, weight: &WeightRef) -> Result<Option<Self>> {
        let Some(packed) = &weight.packed else { return Ok(None) };
        let packing = packed.packing;
        let columns = weight.shape.last().copied().unwrap_or_default();
        let named: Vec<_> = packing.parts().zip(weight.tensors()).collect();
        let order = named.iter().find(|(part, _)| *part == Part::Order);
        let order = order.map(|(_, order)| input_order(checkpoint, columns, order)).transpose()?;
        let with_rows = named.into_iter().filter(|(part, _)| *part != Part::Order);
        let parts = with_rows.map(|(_, tensor)| tensor.clone()).collect();
        Ok(Some(Self { packing, parts, order, columns }))
    }

    /// Writes the values of consecutive rows to `values`, which must have their exact length.
    ///
    /// # Errors
    ///
    /// The errors of [`Checkpoint::weight_rows`] and [`decode_row`].
    pub fn read(
        &self,
        checkpoint: &Checkpoint,
        rows: Range<usize>,
        scratch: &mut Scratch,
        values: &mut [f32],
    ) -> Result<()> {
        let count = rows.len();
        for (index, part) in self.parts.iter().enumerate() {
            let all: usize = part.shape.iter().rev().skip(1).product();
            let bytes = part.byte_len().checked_div(all).unwrap_or_default() * count;
            checkpoint.weight_rows(part, rows.clone(), scratch.part(index, bytes))?;
        }
        let Scratch { parts, row } = scratch;
        let mut of_row: Vec<&[u8]> = Vec::with_capacity(self.parts.len());
        for (index, values) in values.chunks_exact_mut(self.columns.max(1)).enumerate() {
            of_row.clear();
            of_row.extend(parts.iter().take(self.parts.len()).map(|part| {
                let width = part.len() / count;
                &part[index * width..(index + 1) * width]
            }));
            let Some(order) = &self.order else {
                decode_row(&self.packing, &of_row, values)?;
                continue;
            };
            row.resize(self.columns, 0.0);
            decode_row(&self.packing, &of_row, row)?;
            for (value, &input) in row.iter().zip(order) {
                // The order has each input once.
                values[input] = *value;
            }
        }
        Ok(())
    }
}

/// Of each column the input that it belongs to.
fn input_order(checkpoint: &Checkpoint, columns: usize, order: &WeightRef) -> Result<Vec<usize>> {
    let view = checkpoint.weight(order)?;
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
            .with_context("tensor", &order.tensor)
    })
}
