//! Rows of a weight as numbers, for any storage format.

use std::ops::Range;

use mlxcel_core::{Error, Result};

use super::packed::{PackedRows, Scratch};
use crate::checkpoint::{Checkpoint, TensorView};
use crate::decoder::WeightRef;
use crate::element::ElementType;
use crate::float::Float;
use crate::packing::Part;

/// The values of a weight, packed or of floats, row by row: all dimensions but the innermost count as rows.
pub struct WeightRows {
    weight: WeightRef,
    /// The dimensions of the weight.
    shape: Vec<usize>,
    storage: Storage,
}

enum Storage {
    Dense(Float),
    Packed(PackedRows),
}

impl WeightRows {
    /// Rows of `weight`; `None` if it is neither floats nor packed.
    ///
    /// # Errors
    ///
    /// The errors of [`PackedRows::new`].
    pub fn new(checkpoint: &Checkpoint, weight: WeightRef) -> Result<Option<Self>> {
        let storage = match PackedRows::new(checkpoint, &weight)? {
            Some(packed) => Storage::Packed(packed),
            None => match Float::of(weight.element) {
                Some(float) => Storage::Dense(float),
                None => return Ok(None),
            },
        };
        Ok(Some(Self { shape: weight.shape.clone(), weight, storage }))
    }

    /// Rows of the whole tensor that `weight` is all or a part of, in its own shape: of fused weights all.
    ///
    /// # Errors
    ///
    /// The errors of [`new`](Self::new).
    pub fn of_whole(checkpoint: &Checkpoint, weight: &WeightRef) -> Result<Option<Self>> {
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
        Self::new(checkpoint, whole)
    }

    /// The dimensions of the weight.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The weight that is read.
    pub fn weight(&self) -> &WeightRef {
        &self.weight
    }

    /// The values of a row.
    pub fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// The number of rows.
    pub fn count(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }

    /// The type to store the values in: a dense weight's own, that of a packed weight's scales, or
    /// `activations` if the scales have none or float32.
    pub fn float(&self, activations: Float) -> Float {
        let own = match &self.storage {
            Storage::Dense(float) => return *float,
            Storage::Packed(_) => Float::of(self.weight.value_type()),
        };
        own.filter(|own| *own != Float::F32).unwrap_or(activations)
    }

    /// The type in which the values are exact: a dense weight's own, float32 for a packed one.
    pub fn exact(&self) -> Float {
        match self.storage {
            Storage::Dense(float) => float,
            Storage::Packed(_) => Float::F32,
        }
    }

    /// The bytes of the weight as it is stored, with all its parts.
    pub fn bytes(&self) -> u64 {
        self.weight.tensors().map(|part| part.byte_len() as u64).sum()
    }

    /// The weight's first tensor, as errors name it.
    pub fn name(&self) -> &str {
        &self.weight.tensor
    }

    /// Writes the values of consecutive rows to `values`, which must have their exact length.
    ///
    /// # Errors
    ///
    /// The errors of [`PackedRows::read`] and [`Checkpoint::weight_rows`].
    pub fn read(
        &self,
        checkpoint: &Checkpoint,
        rows: Range<usize>,
        scratch: &mut Scratch,
        values: &mut [f32],
    ) -> Result<()> {
        match &self.storage {
            Storage::Packed(packed) => packed.read(checkpoint, rows, scratch, values),
            Storage::Dense(float) => {
                let width = self.weight.byte_len().checked_div(self.count()).unwrap_or_default();
                let bytes = scratch.part(0, width * rows.len());
                checkpoint.weight_rows(&self.weight, rows, bytes)?;
                float.read(bytes, values);
                Ok(())
            }
        }
    }
}

/// The values of a weight as elements of `element`, a type of floats, in the order of its shape.
pub(super) fn values(checkpoint: &Checkpoint, weight: &WeightRef, element: ElementType) -> Result<Vec<u8>> {
    const OPERATION: &str = "expand weight";
    /// This many values are converted at a time.
    const BLOCK: usize = 1 << 16;
    let unsupported = || {
        Error::unsupported(OPERATION, "weights are expanded from packed ones and floats, to floats")
            .with_context("tensor", &weight.tensor)
            .with_context("element_type", element)
    };
    let float = Float::of(element).ok_or_else(unsupported)?;
    let rows = WeightRows::new(checkpoint, weight.clone())?.ok_or_else(unsupported)?;
    let size = weight.elements().saturating_mul(float.bytes());
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(size).map_err(|_| Error::out_of_memory(OPERATION, size))?;
    bytes.resize(size, 0);
    let (columns, mut scratch, mut block) = (rows.columns().max(1), Scratch::default(), Vec::new());
    let together = (BLOCK / columns).max(1);
    for (index, target) in bytes.chunks_mut(together * columns * float.bytes()).enumerate() {
        block.resize(target.len() / float.bytes(), 0.0);
        let first = index * together;
        rows.read(checkpoint, first..first + block.len() / columns, &mut scratch, &mut block)?;
        float.write(&block, target);
    }
    Ok(bytes)
}

/// Gives a weight, or a part, of one tensor that tensor's shape, with `columns` values in a row where these
/// are packed.
fn unselect(checkpoint: &Checkpoint, weight: &mut WeightRef, columns: Option<usize>) -> Result<()> {
    let TensorView { shape, .. } = checkpoint.tensor(&weight.tensor)?;
    weight.selection = None;
    weight.shape = weight.derived.as_ref().map_or(shape, |derived| derived.shape.clone());
    if let (Some(columns), Some(last)) = (columns, weight.shape.last_mut()) {
        *last = columns;
    }
    Ok(())
}
