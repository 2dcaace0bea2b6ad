//! The sums of weights and of the products of an adapter's matrices.

use std::collections::BTreeMap;

use mlxcel_core::{Error, Result};
use mlxcel_models::read::Float;
use mlxcel_models::{AdapterWeights, Checkpoint, Decoder, LowRank, WeightRef};

use super::OPERATION;

/// A tensor that an adapter changes.
pub(super) struct Change<'a> {
    pub(super) tensor: &'a str,
    /// As they are stored.
    pub(super) bytes: &'a [u8],
    pub(super) float: Float,
    /// The values of a stored row.
    pub(super) columns: usize,
    /// Whether a stored row is an input, and not an output.
    is_transposed: bool,
    /// By the output of the tensor, which has several fused projections maybe: the matrices, and the output of these.
    outputs: Vec<Option<(&'a LowRank, usize)>>,
}

/// The tensors that `adapter` changes, by name.
pub(super) fn changes<'a>(
    checkpoint: &'a Checkpoint,
    decoder: &'a Decoder,
    adapter: &'a AdapterWeights,
) -> Result<Vec<Change<'a>>> {
    let mut changes: BTreeMap<&str, Change<'a>> = BTreeMap::new();
    for linear in decoder.adaptable() {
        let Some(matrices) = adapter.products.get(&linear.weight) else { continue };
        let weight = decoder.weight(linear.weight);
        let tensor = weight.tensor.as_str();
        let change = match changes.entry(tensor) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(Change::of(checkpoint, weight, linear.inputs)?)
            }
        };
        let outputs: Vec<usize> = match &weight.selection {
            None => (0..linear.outputs).collect(),
            Some(selection) => selection.indices().collect(),
        };
        for (own, output) in outputs.into_iter().enumerate() {
            let place = change.outputs.get_mut(output);
            *place.ok_or_else(|| unsupported(tensor, "the weight has an unknown arrangement"))? =
                Some((matrices, own));
        }
    }
    Ok(changes.into_values().collect())
}

impl<'a> Change<'a> {
    /// A change of the tensor of `weight`, which has so many inputs, by nothing.
    fn of(checkpoint: &'a Checkpoint, weight: &'a WeightRef, inputs: usize) -> Result<Self> {
        let tensor = weight.tensor.as_str();
        if weight.packed.is_some() || weight.derived.is_some() {
            let message = "the adapter changes a packed weight, and packing the sum again would change it further; merge the \
                           adapter into the checkpoint before it was quantized, and quantize the result";
            return Err(unsupported(tensor, message));
        }
        let view = checkpoint.tensor(tensor)?;
        let float = Float::of(view.element_type);
        let float = float.ok_or_else(|| unsupported(tensor, "the weight is not of type F32, F16 or BF16"))?;
        let values = view.bytes.len() / float.bytes();
        let outputs = values.checked_div(inputs).unwrap_or_default();
        let is_matrix = view.shape.iter().filter(|&&size| size != 1).count() <= 2;
        let columns = if weight.transposed { outputs } else { inputs };
        if !is_matrix || outputs * inputs != values || columns == 0 {
            return Err(unsupported(tensor, "the weight has an unknown arrangement"));
        }
        Ok(Self {
            tensor,
            bytes: view.bytes,
            float,
            columns,
            is_transposed: weight.transposed,
            outputs: vec![None; outputs],
        })
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
            stored.ok_or_else(|| unsupported(self.tensor, "the weight has an unknown arrangement"))?;
        let (mut values, mut sum) = (vec![0.0f32; self.columns], vec![0.0f32; self.columns]);
        for (index, (stored, out)) in stored.chunks_exact(width).zip(out.chunks_exact_mut(width)).enumerate()
        {
            self.float.read(stored, &mut values);
            sum.fill(0.0);
            if self.is_transposed {
                self.add_input(first + index, &mut sum);
            } else {
                self.add_output(first + index, &mut sum);
            }
            for (value, sum) in values.iter_mut().zip(&sum) {
                *value += sum;
                if !self.float.round(*value).is_finite() {
                    let message = "a merged value is too large for the weight's type";
                    return Err(unsupported(self.tensor, message).with_context("type", self.float.element()));
                }
            }
            self.float.write(&values, out);
        }
        Ok(())
    }

    /// Adds a row of `B A`.
    fn add_output(&self, output: usize, sum: &mut [f32]) {
        let Some(Some((LowRank { rank, a, b }, own))) = self.outputs.get(output) else { return };
        let factors = b.chunks_exact(*rank).nth(*own).unwrap_or_default();
        for (factor, a) in factors.iter().zip(a.chunks_exact(self.columns)) {
            for (sum, a) in sum.iter_mut().zip(a) {
                *sum += factor * a;
            }
        }
    }

    /// Adds a column of `B A`.
    fn add_input(&self, input: usize, sum: &mut [f32]) {
        let inputs = self.rows();
        for (sum, output) in sum.iter_mut().zip(&self.outputs) {
            let Some((LowRank { rank, a, b }, own)) = output else { continue };
            let factors = b.chunks_exact(*rank).nth(*own).unwrap_or_default();
            let a = a.iter().skip(input).step_by(inputs);
            *sum += factors.iter().zip(a).map(|(factor, a)| factor * a).sum::<f32>();
        }
    }
}

fn unsupported(tensor: &str, message: &'static str) -> Error {
    Error::unsupported(OPERATION, message).with_context("tensor", tensor.escape_debug())
}
