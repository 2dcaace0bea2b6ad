//! An adapter's matrices, read product by product.

use std::collections::HashMap;

use mlxcel_core::{AdapterLimits, ErrorKind, ModelSource, Result};

use super::files::{Files, Part};
use super::modules::Reader;
use super::rows::RowOrder;
use super::{LowRank, MERGED_ONLY, module_name, named, other_kind};
use crate::config::Config;
use crate::decoder::{Decoder, Linear, WeightId};

/// The files of an adapter for a decoder. [`for_each`](Self::for_each) reads the matrices of one product after
/// the other, so that not all of them are in memory.
pub struct StoredAdapter<'d> {
    files: Files,
    config: Option<Config>,
    decoder: &'d Decoder,
    room: AdapterLimits,
}

impl<'d> StoredAdapter<'d> {
    /// Opens the adapter in `source`.
    ///
    /// # Errors
    ///
    /// Those of [`AdapterWeights::read`](super::AdapterWeights::read) about files and settings.
    pub fn open(source: &ModelSource, decoder: &'d Decoder, room: AdapterLimits) -> Result<Self> {
        let files = Files::open(source)?;
        let config = files.config()?;
        Reader::new(&files, config.as_ref())?.settings.expect_unmerged()?;
        Ok(Self { files, config, decoder, room })
    }

    /// [`AdapterWeights::identity`](super::AdapterWeights::identity).
    pub fn identity(&self) -> String {
        self.files.identity()
    }

    /// Calls `product` with the matrices beside each weight that the adapter changes.
    ///
    /// # Errors
    ///
    /// Those of [`AdapterWeights::read`](super::AdapterWeights::read) about tensors, and those of `product`.
    pub fn for_each(&self, mut product: impl FnMut(WeightId, LowRank) -> Result<()>) -> Result<()> {
        let Self { files, config, decoder, room } = self;
        let reader = Reader::new(files, config.as_ref())?;
        let order = RowOrder::of(decoder, files.format)?;
        let targets = targets(decoder);
        for (&name, module) in &reader.modules {
            let refuse = |kind, message| reader.refuse(kind, message, name);
            if let Some(other) = module.other_than(&[Part::A, Part::B]) {
                return Err(reader.refuse(ErrorKind::Unsupported, MERGED_ONLY, &other.name));
            }
            let Some(parts) = targets.get(name) else {
                let message = "the model has no such product that adapters can change";
                return Err(refuse(other_kind(decoder, name), message));
            };
            let inputs = parts.first().map_or(0, |(linear, _)| linear.inputs);
            let outputs = parts.iter().map(|(linear, _)| linear.outputs).sum::<usize>();
            let matrices = reader.matrices(name, module, [outputs, inputs], room.rank)?;
            let rows = parts.iter().map(|(linear, rows)| order.rows(linear.weight, parts.len() > 1, rows));
            let rows = rows.collect::<Result<Vec<_>>>();
            let rows = rows.map_err(|error| named(error, &files.location, name))?;
            for ((linear, _), part) in parts.iter().zip(matrices.by_outputs(&rows)) {
                product(linear.weight, part)?;
            }
        }
        Ok(())
    }
}

/// The products that adapters can change, by module: more than one if the module is fused, each with its rows
/// of the module's. Modules of which some rows are of no such product are left out.
fn targets(decoder: &Decoder) -> HashMap<&str, Vec<(Linear, Vec<usize>)>> {
    let mut modules: HashMap<&str, Vec<(Linear, Vec<usize>)>> = HashMap::new();
    for linear in decoder.adaptable() {
        let weight = decoder.weight(linear.weight);
        let is_one = weight.stack.is_empty() && weight.joined.is_empty();
        let Some(module) = module_name(weight).filter(|_| is_one) else { continue };
        let rows = match &weight.selection {
            None => (0..linear.outputs).collect(),
            Some(selection) if selection.axis == 0 => selection.indices().collect(),
            Some(_) => continue,
        };
        modules.entry(module).or_default().push((linear, rows));
    }
    modules.retain(|_, parts| {
        let mut rows: Vec<usize> = parts.iter().flat_map(|(_, rows)| rows.iter().copied()).collect();
        rows.sort_unstable();
        let fits = parts.iter().all(|(linear, rows)| rows.len() == linear.outputs);
        fits && rows.iter().copied().eq(0..rows.len())
    });
    modules
}
