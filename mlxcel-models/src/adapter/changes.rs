//! What an adapter changes in the weights of a checkpoint when it is merged: more than can run beside them.

use std::collections::{BTreeMap, HashMap};

use mlxcel_core::{AdapterLimits, ErrorKind, ModelSource, Result};

use super::files::{Files, Part};
use super::modules::Reader;
use super::rows::RowOrder;
use super::{LowRank, other_kind};
use crate::checkpoint::Checkpoint;
use crate::decoder::Decoder;
use crate::read::WeightRows;

/// The changes of an adapter to the weights of a checkpoint, for [merging](Self::read).
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterChanges {
    /// Identifies the adapter, as [`AdapterWeights::identity`](super::AdapterWeights::identity).
    pub identity: String,
    /// By module, such as `model.layers.0.mlp.down_proj`.
    pub modules: BTreeMap<String, ModuleChange>,
}

/// The change of a module's matrix `W`, of a row for each output: `m/‖W + B A‖ (W + B A)`, with the norm of
/// each row.
#[derive(Clone, Debug, PartialEq)]
pub struct ModuleChange {
    /// The number of rows of the matrix.
    pub outputs: usize,
    /// The number of its columns.
    pub inputs: usize,
    /// Whether the file has a row for each input, and not for each output.
    pub is_transposed: bool,
    /// Values to take in place of the checkpoint's, row by row.
    pub replaced: Option<Vec<f32>>,
    /// The matrices whose product is added.
    pub product: Option<LowRank>,
    /// The lengths `m` of the rows of the sum, which DoRA trains (Liu et al., 2024); `None` to leave them as
    /// they are.
    pub magnitude: Option<Vec<f32>>,
}

impl ModuleChange {
    /// Changes row `output` of the matrix, which has the checkpoint's `values`.
    pub fn apply(&self, output: usize, values: &mut [f32]) {
        if let Some(replaced) = &self.replaced {
            let row = replaced.chunks_exact(self.inputs.max(1)).nth(output).unwrap_or_default();
            values.iter_mut().zip(row).for_each(|(value, own)| *value = *own);
        }
        if let Some(LowRank { rank, a, b }) = &self.product {
            let factors = b.chunks_exact((*rank).max(1)).nth(output).unwrap_or_default();
            let mut sum = vec![0.0f32; values.len()];
            for (factor, a) in factors.iter().zip(a.chunks_exact(self.inputs.max(1))) {
                sum.iter_mut().zip(a).for_each(|(sum, a)| *sum += factor * a);
            }
            values.iter_mut().zip(&sum).for_each(|(value, sum)| *value += sum);
        }
        if let Some(magnitude) = self.magnitude.as_ref().and_then(|all| all.get(output)) {
            let squares = values.iter().map(|&value| f64::from(value) * f64::from(value)).sum::<f64>();
            let factor = f64::from(*magnitude) / squares.sqrt();
            values.iter_mut().for_each(|value| *value = (f64::from(*value) * factor) as f32);
        }
    }
}

/// A matrix of the checkpoint that a module is.
struct Target {
    outputs: usize,
    inputs: usize,
    is_transposed: bool,
}

impl AdapterChanges {
    /// Reads the adapter in `source` for merging into `checkpoint`, whose network is `decoder`. Beyond what
    /// [`AdapterWeights::read`](super::AdapterWeights::read) reads these are DoRA, LoRA on the embedding, on
    /// a head that is not tied to it, and on experts whose matrices are stored apart, and saved modules
    /// (`modules_to_save`).
    ///
    /// # Errors
    ///
    /// As for [`AdapterWeights::read`](super::AdapterWeights::read); [`Unsupported`](ErrorKind::Unsupported)
    /// also for an embedding or a head that are one matrix, DoRA of an embedding or of a matrix that is
    /// stored transposed, and a checkpoint in a GGUF file.
    pub fn read(source: &ModelSource, checkpoint: &Checkpoint, decoder: &Decoder) -> Result<Self> {
        let files = Files::open(source)?;
        let config = files.config()?;
        let reader = Reader::new(&files, config.as_ref())?;
        let order = RowOrder::of(decoder, files.format)?;
        let (targets, tied) = (matrices(checkpoint, decoder)?, tied(decoder));
        let mut modules = BTreeMap::new();
        for (&name, module) in &reader.modules {
            let refuse = |kind, message| reader.refuse(kind, message, name);
            if tied.contains(&name) {
                let message = "the embedding and the head are one matrix of the model, and the adapter changes one of them";
                return Err(refuse(ErrorKind::Unsupported, message));
            }
            let Some(&Target { outputs, inputs, is_transposed }) = targets.get(name) else {
                let message = "the model has no such matrix that adapters can change";
                return Err(refuse(other_kind(decoder, name), message));
            };
            let saved = module.get(Part::Saved).or(module.get(Part::Base));
            let shape = if is_transposed { [inputs, outputs] } else { [outputs, inputs] };
            let replaced = saved.map(|entry| reader.tensor(entry, &shape)).transpose()?;
            let is_embedding =
                module.get(Part::EmbeddingA).is_some() || module.get(Part::EmbeddingB).is_some();
            let is_linear = module.get(Part::A).is_some() || module.get(Part::B).is_some();
            let magnitude = module.get(Part::Magnitude);
            let mut product = match (is_embedding, is_linear) {
                (true, _) => Some(reader.embedding(name, module, [outputs, inputs])?),
                (_, true) => {
                    Some(reader.matrices(name, module, [outputs, inputs], AdapterLimits::MAX_RANK)?)
                }
                (false, false) => None,
            };
            if magnitude.is_some() && (is_transposed || !is_linear || is_embedding) {
                let message = "magnitudes are supported beside matrices that are stored by outputs";
                return Err(refuse(ErrorKind::Unsupported, message));
            }
            if is_transposed && replaced.is_some() {
                let message = "saved modules are supported for matrices that are stored by outputs";
                return Err(refuse(ErrorKind::Unsupported, message));
            }
            let magnitude = magnitude.map(|entry| reader.tensor(entry, &[outputs])).transpose()?;
            if let Some(LowRank { rank, b, .. }) = &mut product {
                let rows = order.rows_of_module(decoder, name, outputs)?;
                *b = rows.iter().flat_map(|&row| b.iter().skip(row * *rank).take(*rank).copied()).collect();
            }
            let change = ModuleChange { outputs, inputs, is_transposed, replaced, product, magnitude };
            modules.insert(name.to_owned(), change);
        }
        Ok(Self { identity: files.identity(), modules })
    }
}

/// The matrices of the checkpoint that the network has, by module.
fn matrices(checkpoint: &Checkpoint, decoder: &Decoder) -> Result<HashMap<String, Target>> {
    let mut found = HashMap::new();
    for weight in decoder.products().into_iter().map(|id| decoder.weight(id)) {
        // Of packed weights the first tensor names the module; experts' may be apart.
        for tensor in weight.names() {
            const SUFFIXES: [&str; 3] = [".weight", ".qweight", ".weight_packed"];
            let Some(module) = SUFFIXES.iter().find_map(|suffix| tensor.strip_suffix(suffix)) else {
                continue;
            };
            if found.contains_key(module) {
                continue;
            }
            let shape = if weight.stack.is_empty() {
                let rows = WeightRows::of_whole(checkpoint, weight)?;
                rows.map_or(Vec::new(), |rows| rows.shape().to_vec())
            } else if weight.packed.is_none() {
                checkpoint.tensor(tensor)?.shape
            } else {
                continue;
            };
            let is_transposed = weight.transposed;
            let [rows, columns] = shape[..] else { continue };
            let [outputs, inputs] = if is_transposed { [columns, rows] } else { [rows, columns] };
            found.insert(module.to_owned(), Target { outputs, inputs, is_transposed });
        }
    }
    Ok(found)
}

/// The modules of an embedding and a head that are one matrix.
fn tied(decoder: &Decoder) -> Vec<&str> {
    if !decoder.head.is_some_and(|head| head.tied) {
        return Vec::new();
    }
    let table = decoder.weight(decoder.embedding.weight).tensor.as_str();
    vec![table.rsplit_once('.').map_or(table, |(module, _)| module), "lm_head"]
}
