//! Adapters: low-rank changes of a checkpoint's weights, as the PEFT library, mlx-lm and llama.cpp write
//! them.

mod changes;
mod config;
mod files;
mod mlx;
mod modules;
mod rows;
mod stored;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use mlxcel_core::{AdapterLimits, Error, ErrorKind, ModelSource, Result};

use crate::decoder::{Decoder, WeightId, WeightRef};
use crate::element::ElementType;
use crate::float::Float;

pub use changes::{AdapterChanges, ModuleChange};
use files::{Files, Part};
pub use stored::StoredAdapter;

const OPERATION: &str = "load adapter";

/// The message about changes that programs have no arguments for.
const MERGED_ONLY: &str =
    "an adapter with this change cannot run beside the weights; merge it into them, as `mlxcel merge` does";

/// An adapter for the products of a decoder: `y = W x + B (A x)`.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterWeights {
    /// Identifies the adapter: 64 hexadecimal digits of a SHA-256, made as that of a
    /// [checkpoint](crate::Checkpoint::fingerprint).
    pub identity: String,
    /// The matrices beside each weight that the adapter changes.
    pub products: HashMap<WeightId, LowRank>,
}

/// Two matrices of low rank, in float32.
#[derive(Clone, Debug, PartialEq)]
pub struct LowRank {
    /// The number of rows of `A`, and of columns of `B`.
    pub rank: usize,
    /// `A`: `[rank, inputs]`.
    pub a: Vec<f32>,
    /// `B`: `[outputs, rank]`, times the adapter's scale.
    pub b: Vec<f32>,
}

impl LowRank {
    /// The changes of these outputs each.
    fn by_outputs(self, parts: &[Vec<usize>]) -> Vec<Self> {
        let Self { rank, ref a, ref b } = self;
        if let [rows] = parts
            && rows.iter().copied().eq(0..b.len() / rank.max(1))
        {
            return vec![self];
        }
        let of_rows = |rows: &Vec<usize>| {
            let mut part = Vec::with_capacity(rows.len() * rank);
            rows.iter().for_each(|&row| part.extend_from_slice(&b[row * rank..][..rank]));
            Self { rank, a: a.clone(), b: part }
        };
        parts.iter().map(of_rows).collect()
    }

    /// Both matrices padded with zeros to this `rank`, in this element type.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) for a value that is infinite in that type, or another type
    /// than F32, F16 or BF16.
    pub fn padded(&self, element: ElementType, rank: usize) -> Result<[Vec<u8>; 2]> {
        let float = Float::of(element).ok_or_else(|| {
            Error::unsupported(OPERATION, "adapters are in F32, F16 or BF16").with_context("type", element)
        })?;
        if !float.holds(&self.a) || !float.holds(&self.b) {
            let message = "a value of the adapter is too large for the model's element type";
            return Err(Error::unsupported(OPERATION, message).with_context("type", element));
        }
        let own = self.rank.max(1);
        let zeros =
            |rows: usize, columns: usize| vec![0; rows.saturating_mul(columns).saturating_mul(float.bytes())];
        let mut a = zeros(rank, self.a.len() / own);
        float.write(&self.a, &mut a);
        let mut b = zeros(self.b.len() / own, rank);
        match own == rank {
            true => float.write(&self.b, &mut b),
            false => {
                let rows = b.chunks_mut((rank * float.bytes()).max(1)).zip(self.b.chunks(own));
                rows.for_each(|(bytes, row)| float.write(row, bytes));
            }
        }
        Ok([a, b])
    }
}

impl AdapterWeights {
    /// The largest rank of the matrices of the adapter in `source`: the least [room](AdapterLimits::rank)
    /// that holds it.
    ///
    /// # Errors
    ///
    /// [`NotFound`](ErrorKind::NotFound) if a file is missing, [`Corrupt`](ErrorKind::Corrupt) for a damaged
    /// one.
    pub fn rank(source: &ModelSource) -> Result<usize> {
        let Files { tensors, format, .. } = Files::open(source)?;
        let ranks = tensors.iter().filter_map(|tensor| match (&tensor.part, &tensor.entry.shape[..]) {
            (Some((_, Part::A)), &[rows, columns]) => {
                Some(if format.is_transposed() { columns } else { rows })
            }
            _ => None,
        });
        Ok(ranks.max().unwrap_or_default())
    }

    /// Calls `file` with the name and the content of each file of the adapter in `source`, as a folder needs
    /// them.
    ///
    /// # Errors
    ///
    /// [`NotFound`](ErrorKind::NotFound) if a file is missing, [`Corrupt`](ErrorKind::Corrupt) for a damaged
    /// one; those of `file`.
    pub fn copy(source: &ModelSource, mut file: impl FnMut(&str, &[u8]) -> Result<()>) -> Result<()> {
        Files::open(source)?.contents().try_for_each(|(name, content)| file(name, content))
    }

    /// Reads the adapter in `source` for `decoder`: a folder with `adapter_config.json` and
    /// `adapter_model.safetensors`, as PEFT writes it, or `adapters.safetensors`, as mlx-lm does; or a
    /// GGUF file, as the converter of llama.cpp writes it.
    ///
    /// LoRA with matrices beside [products](Decoder::adaptable) of attention, recurrences and MLPs is
    /// supported, also beside fused projections. Other kinds, and other settings that change results, are
    /// refused by name.
    ///
    /// # Errors
    ///
    /// [`NotFound`](ErrorKind::NotFound) if a file is missing; [`Corrupt`](ErrorKind::Corrupt) for damaged
    /// files, numbers that are not finite, and shapes that contradict each other;
    /// [`InvalidInput`](ErrorKind::InvalidInput) for an adapter of another model;
    /// [`Unsupported`](ErrorKind::Unsupported) for other kinds, tensors and settings, and for a rank above
    /// `room`.
    pub fn read(source: &ModelSource, decoder: &Decoder, room: AdapterLimits) -> Result<Self> {
        let stored = StoredAdapter::open(source, decoder, room)?;
        let mut products = HashMap::new();
        stored.for_each(|weight, product| {
            products.insert(weight, product);
            Ok(())
        })?;
        Ok(Self { identity: stored.identity(), products })
    }
}

/// The kind of the error for a module that an adapter cannot change: another if the network has it.
fn other_kind(decoder: &Decoder, module: &str) -> ErrorKind {
    let mut tensors = decoder.weights().flat_map(WeightRef::names);
    let is_own = tensors.any(|tensor| {
        tensor.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    });
    let is_head = module == "lm_head" && decoder.head.is_some();
    if is_own || is_head { ErrorKind::Unsupported } else { ErrorKind::InvalidInput }
}

/// The module that a weight is of: its tensor's name without the last part.
fn module_name(weight: &WeightRef) -> Option<&str> {
    weight.tensor.rsplit_once('.').map(|(module, _)| module)
}

fn named(error: Error, location: &str, name: &str) -> Error {
    error.with_context("tensor", name.escape_debug()).with_context("path", location)
}
