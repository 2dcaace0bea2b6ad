//! The tensors of an adapter by module, and the matrices that they are.

use std::collections::BTreeMap;

use mlxcel_core::{Error, ErrorKind, Result};

use super::files::{Files, Part, Settings, Tensor};
use super::{LowRank, OPERATION, named};
use crate::config::Config;
use crate::float::Float;
use crate::safetensors::Entry;

/// The tensors of a module, by part.
#[derive(Clone, Copy, Default)]
pub(super) struct Module<'f>([Option<&'f Entry>; Part::COUNT]);

impl<'f> Module<'f> {
    /// A tensor of the module.
    pub(super) fn get(&self, part: Part) -> Option<&'f Entry> {
        self.0.get(part as usize).copied().flatten()
    }

    /// The first part that is none of `parts`.
    pub(super) fn other_than(&self, parts: &[Part]) -> Option<&'f Entry> {
        Part::ALL.into_iter().filter(|part| !parts.contains(part)).find_map(|part| self.get(part))
    }
}

/// An adapter's modules, and what reads their matrices.
pub(super) struct Reader<'f> {
    files: &'f Files,
    pub(super) settings: Settings<'f>,
    /// The tensors of each module.
    pub(super) modules: BTreeMap<&'f str, Module<'f>>,
}

impl<'f> Reader<'f> {
    /// Sorts the tensors of `files` by module; `config` is their [settings](Files::config).
    pub(super) fn new(files: &'f Files, config: Option<&'f Config>) -> Result<Self> {
        let settings = Settings::read(files.format, config.map(Config::fields))?;
        let mut modules: BTreeMap<&str, Module<'_>> = BTreeMap::new();
        for Tensor { entry, part } in &files.tensors {
            let Some((module, part)) = part else {
                let message = "the adapter has a tensor of an unknown kind";
                return Err(named(Error::unsupported(OPERATION, message), &files.location, &entry.name));
            };
            if let Some(place) = modules.entry(module).or_default().0.get_mut(*part as usize) {
                *place = Some(entry);
            }
        }
        Ok(Self { files, settings, modules })
    }

    /// An error about a module or tensor.
    pub(super) fn refuse(&self, kind: ErrorKind, message: &'static str, name: &str) -> Error {
        named(Error::new(kind, OPERATION, message), &self.files.location, name)
    }

    /// The matrices of a module that has so many outputs and inputs and is among those that the settings
    /// list; `B` is scaled.
    pub(super) fn matrices(
        &self,
        name: &str,
        module: &Module<'_>,
        [outputs, inputs]: [usize; 2],
        room: usize,
    ) -> Result<LowRank> {
        let refuse = |kind, message| self.refuse(kind, message, name);
        let (Some(a), Some(b)) = (module.get(Part::A), module.get(Part::B)) else {
            return Err(refuse(ErrorKind::Corrupt, "an adapter needs both matrices of a module"));
        };
        if !self.settings.targets(name) {
            return Err(refuse(
                ErrorKind::Corrupt,
                "the module has matrices and is not among target_modules",
            ));
        }
        let (&[a_rows, a_columns], &[b_rows, b_columns]) = (&a.shape[..], &b.shape[..]) else {
            return Err(refuse(ErrorKind::Unsupported, "the matrices of an adapter have two dimensions"));
        };
        let transposes = self.files.format.is_transposed();
        let ([rank, a_inputs], [b_outputs, b_rank]) = match transposes {
            true => ([a_columns, a_rows], [b_columns, b_rows]),
            false => ([a_rows, a_columns], [b_rows, b_columns]),
        };
        if rank == 0 || rank != b_rank {
            return Err(refuse(ErrorKind::Corrupt, "the matrices of an adapter have different ranks"));
        }
        if (a_inputs, b_outputs) != (inputs, outputs) {
            let message = "the matrices of the adapter do not fit the model's";
            return Err(refuse(ErrorKind::InvalidInput, message)
                .with_context("adapter", format_args!("[{b_outputs}, {a_inputs}]"))
                .with_context("model", format_args!("[{outputs}, {inputs}]")));
        }
        if rank > room {
            let message = "the adapter's rank is above the model's room; load the model with room for it";
            return Err(refuse(ErrorKind::Unsupported, message)
                .with_context("rank", rank)
                .with_context("room", room));
        }
        let scale = self.settings.scale(name, rank)?;
        let read = |entry, rows| {
            let values = self.values(entry)?;
            Ok::<_, Error>(if transposes { transposed(&values, rows) } else { values })
        };
        let (a, b) = (read(a, rank)?, read(b, outputs)?);
        Ok(LowRank { rank, a, b: self.scaled(b, scale, name)? })
    }

    /// The matrices of an embedding of so many rows: `A` has a column for each, so it is the transposed
    /// second matrix of what is added to the embedding's rows.
    pub(super) fn embedding(
        &self,
        name: &str,
        module: &Module<'_>,
        [rows, width]: [usize; 2],
    ) -> Result<LowRank> {
        let refuse = |kind, message| self.refuse(kind, message, name);
        let (Some(a), Some(b)) = (module.get(Part::EmbeddingA), module.get(Part::EmbeddingB)) else {
            return Err(refuse(ErrorKind::Corrupt, "an adapter needs both matrices of a module"));
        };
        let (&[rank, a_columns], &[b_rows, b_columns]) = (&a.shape[..], &b.shape[..]) else {
            return Err(refuse(ErrorKind::Unsupported, "the matrices of an adapter have two dimensions"));
        };
        if rank == 0 || rank != b_columns || (a_columns, b_rows) != (rows, width) {
            let message = "the matrices of the adapter do not fit the model's";
            return Err(refuse(ErrorKind::InvalidInput, message)
                .with_context("adapter", format_args!("[{a_columns}, {b_rows}]"))
                .with_context("model", format_args!("[{rows}, {width}]")));
        }
        let scale = self.settings.scale(name, rank)?;
        let (second, first) = (transposed(&self.values(a)?, rows), transposed(&self.values(b)?, rank));
        Ok(LowRank { rank, a: first, b: self.scaled(second, scale, name)? })
    }

    fn scaled(&self, mut values: Vec<f32>, scale: f32, name: &str) -> Result<Vec<f32>> {
        values.iter_mut().for_each(|value| *value *= scale);
        if Float::F32.holds(&values) {
            return Ok(values);
        }
        Err(self.refuse(ErrorKind::Corrupt, "a scaled number of the adapter is not finite", name))
    }

    /// The numbers of a tensor of this shape.
    pub(super) fn tensor(&self, entry: &Entry, shape: &[usize]) -> Result<Vec<f32>> {
        if entry.shape == shape {
            return self.values(entry);
        }
        let message = "the tensor of the adapter does not fit the model's";
        Err(self
            .refuse(ErrorKind::InvalidInput, message, &entry.name)
            .with_context("adapter", format_args!("{:?}", entry.shape))
            .with_context("model", format_args!("{shape:?}")))
    }

    /// The numbers of a tensor, which must be finite.
    fn values(&self, entry: &Entry) -> Result<Vec<f32>> {
        let Some(float) = Float::of(entry.element) else {
            let message = "the tensors of an adapter must be F32, F16 or BF16";
            let error = self.refuse(ErrorKind::Unsupported, message, &entry.name);
            return Err(error.with_context("type", entry.element));
        };
        let bytes = self.files.bytes_of(entry);
        let mut values = vec![0.0; bytes.len() / float.bytes()];
        float.read(bytes, &mut values);
        if Float::F32.holds(&values) {
            return Ok(values);
        }
        Err(self.refuse(ErrorKind::Corrupt, "a number of the adapter is not finite", &entry.name))
    }
}

/// The numbers of a matrix with so many rows, by rows, from those by columns.
fn transposed(values: &[f32], rows: usize) -> Vec<f32> {
    (0..rows).flat_map(|row| values.iter().skip(row).step_by(rows.max(1)).copied()).collect()
}
