//! The files of an adapter, in the format of PEFT or of mlx-lm.

use std::borrow::Cow;

use mlxcel_core::{Error, ErrorKind, ModelSource, Result};

use super::{OPERATION, config, mlx};
use crate::bytes::FileBytes;
use crate::config::Fields;
use crate::safetensors::{Entry, read_header};
use crate::source::Source;

/// The settings, in both formats.
pub(super) const CONFIG: &str = "adapter_config.json";

/// The library that wrote an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Peft,
    Mlx,
}

impl Format {
    /// The file with the matrices.
    pub(super) fn weights(self) -> &'static str {
        match self {
            Self::Peft => "adapter_model.safetensors",
            Self::Mlx => "adapters.safetensors",
        }
    }

    /// The module of a tensor, and which of the two matrices it is.
    pub(super) fn module_of(self, tensor: &str) -> Option<(&str, usize)> {
        let (prefix, suffixes) = match self {
            Self::Peft => ("base_model.model.", [".lora_A.weight", ".lora_B.weight"]),
            Self::Mlx => ("", [".lora_a", ".lora_b"]),
        };
        let module = tensor.strip_prefix(prefix)?;
        let mut matrices = suffixes.into_iter().enumerate();
        matrices.find_map(|(matrix, suffix)| Some((module.strip_suffix(suffix)?, matrix)))
    }

    /// Whether a matrix has a row for each of its inputs, and not for each of its outputs.
    pub(super) fn is_transposed(self) -> bool {
        self == Self::Mlx
    }
}

/// The files of an adapter.
pub(super) struct Files {
    pub(super) source: Source,
    pub(super) settings: Cow<'static, [u8]>,
    pub(super) weights: FileBytes,
    /// The tensors of the weights, by name.
    pub(super) entries: Vec<Entry>,
    pub(super) format: Format,
}

impl Files {
    pub(super) fn open(source: &ModelSource) -> Result<Self> {
        let source = match source {
            ModelSource::Folder(folder) => Source::at(folder)?,
            ModelSource::Embedded(files) => Source::embedded(files)?,
            _ => return Err(Error::unsupported(OPERATION, "pass the folder of an adapter")),
        };
        let missing = |name: &str, message: &'static str| {
            Error::new(ErrorKind::NotFound, OPERATION, message).with_context("path", source.locate(name))
        };
        let settings = source.read(CONFIG)?;
        let settings = settings.ok_or_else(|| missing(CONFIG, "the folder has no adapter_config.json"))?;
        let mut found = None;
        for format in [Format::Peft, Format::Mlx] {
            if found.is_none() {
                found = source.map(format.weights())?.map(|weights| (format, weights));
            }
        }
        let (format, weights) = found.ok_or_else(|| {
            let message = "the folder has neither adapter_model.safetensors, which PEFT writes with safetensors, nor \
                           adapters.safetensors of mlx-lm";
            missing(Format::Peft.weights(), message)
        })?;
        let mut entries = read_header(&source.locate(format.weights()), &weights)?;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self { source, settings, weights, entries, format })
    }
}

/// The settings of a LoRA adapter.
pub(super) enum Settings<'a> {
    Peft(config::Settings<'a>),
    Mlx(mlx::Settings<'a>),
}

impl<'a> Settings<'a> {
    /// Reads them.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](mlxcel_core::ErrorKind::Unsupported) for another kind of adapter, and for a field that is set and is not
    /// honoured; [`Corrupt`](mlxcel_core::ErrorKind::Corrupt) for values out of range.
    pub(super) fn read(format: Format, fields: Fields<'a>) -> Result<Self> {
        match format {
            Format::Peft => config::Settings::read(fields).map(Self::Peft),
            Format::Mlx => mlx::Settings::read(fields).map(Self::Mlx),
        }
    }

    /// Whether `module` is among those that the adapter lists, if it does.
    pub(super) fn targets(&self, module: &str) -> bool {
        match self {
            Self::Peft(settings) => settings.targets(module),
            Self::Mlx(settings) => settings.targets(module),
        }
    }

    /// What the product of the matrices of `module`, which have this rank, is multiplied by.
    ///
    /// # Errors
    ///
    /// [`Corrupt`](mlxcel_core::ErrorKind::Corrupt) for another rank than the settings say;
    /// [`Unsupported`](mlxcel_core::ErrorKind::Unsupported) for patterns that are not names of modules.
    pub(super) fn scale(&self, module: &str, rank: usize) -> Result<f32> {
        match self {
            Self::Peft(settings) => settings.scale(module, rank),
            Self::Mlx(settings) => settings.scale(module, rank),
        }
    }
}
