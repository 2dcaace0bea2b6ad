//! The changed values of dense weights.

use mlxcel_core::{Error, Result};
use mlxcel_models::read::Float;
use mlxcel_models::{AdapterChanges, Checkpoint, LowRank, ModuleChange};

use super::OPERATION;

/// A tensor that an adapter changes.
pub(super) struct Change<'a> {
    pub(super) tensor: String,
    /// As they are stored.
    pub(super) bytes: &'a [u8],
    pub(super) float: Float,
    /// The values of a stored row.
    pub(super) columns: usize,
    module: &'a ModuleChange,
}

/// The tensors that `adapter` changes, by name.
pub(super) fn changes<'a>(
    checkpoint: &'a Checkpoint,
    adapter: &'a AdapterChanges,
) -> Result<Vec<Change<'a>>> {
    adapter.modules.iter().map(|(name, module)| Change::of(checkpoint, name, module)).collect()
}

impl<'a> Change<'a> {
    /// The change of a module's tensor.
    fn of(checkpoint: &'a Checkpoint, name: &str, module: &'a ModuleChange) -> Result<Self> {
        let tensor = format!("{name}.weight");
        let view =
            checkpoint.tensor(&tensor).ok().and_then(|view| Some((Float::of(view.element_type)?, view)));
        let Some((float, view)) = view else {
            let message =
                "the adapter changes a packed weight; write the weights as floats, or pack the sums";
            return Err(unsupported(&tensor, message));
        };
        let ModuleChange { outputs, inputs, is_transposed, .. } = *module;
        let [rows, columns] = if is_transposed { [inputs, outputs] } else { [outputs, inputs] };
        if view.shape != [rows, columns] || columns == 0 {
            return Err(unsupported(&tensor, "the weight has an unknown arrangement"));
        }
        Ok(Self { tensor, bytes: view.bytes, float, columns, module })
    }

    /// The number of stored rows.
    pub(super) fn rows(&self) -> usize {
        self.bytes.len() / self.float.bytes() / self.columns
    }

    /// Writes the merged values of the stored rows from `first` on to `out`, as many as it has room for.
    pub(super) fn merge(&self, first: usize, out: &mut [u8]) -> Result<()> {
        let width = self.columns * self.float.bytes();
        let stored = self.bytes.get(first * width..).and_then(|rest| rest.get(..out.len()));
        let stored =
            stored.ok_or_else(|| unsupported(&self.tensor, "the weight has an unknown arrangement"))?;
        let mut values = vec![0.0f32; self.columns];
        for (index, (stored, out)) in stored.chunks_exact(width).zip(out.chunks_exact_mut(width)).enumerate()
        {
            self.float.read(stored, &mut values);
            if self.module.is_transposed {
                self.add_input(first + index, &mut values);
            } else {
                self.module.apply(first + index, &mut values);
            }
            if !self.float.holds(&values) {
                let message = "a merged value is too large for the weight's type";
                return Err(unsupported(&self.tensor, message).with_context("type", self.float.element()));
            }
            self.float.write(&values, out);
        }
        Ok(())
    }

    /// Adds a column of `B A`.
    fn add_input(&self, input: usize, values: &mut [f32]) {
        let Some(LowRank { rank, a, b }) = &self.module.product else { return };
        for (value, factors) in values.iter_mut().zip(b.chunks_exact((*rank).max(1))) {
            let a = a.iter().skip(input).step_by(self.module.inputs.max(1));
            *value += factors.iter().zip(a).map(|(factor, a)| factor * a).sum::<f32>();
        }
    }
}

fn unsupported(tensor: &str, message: &'static str) -> Error {
    Error::unsupported(OPERATION, message).with_context("tensor", tensor.escape_debug())
}
