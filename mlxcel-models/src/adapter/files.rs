//! The files of an adapter, in the format of PEFT, of mlx-lm or of llama.cpp.

use std::borrow::Cow;
use std::sync::Arc;

use mlxcel_core::{Error, ErrorKind, ModelSource, Result};

use super::{OPERATION, config, mlx};
use crate::bytes::FileBytes;
use crate::config::{Config, Fields};
use crate::fingerprint::fingerprint_of;
use crate::gguf::Lora;
use crate::safetensors::{Entry, read_header};
use crate::source::Source;

/// The settings of PEFT and mlx-lm.
pub(super) const CONFIG: &str = "adapter_config.json";

/// The library that wrote an adapter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Format {
    Peft,
    Mlx,
    /// The converter of llama.cpp, for a base model of this architecture.
    Gguf {
        architecture: &'static str,
        alpha: Option<f64>,
    },
}

impl Format {
    /// The file with the matrices, of formats with settings in another file.
    pub(super) fn weights(self) -> Option<&'static str> {
        match self {
            Self::Peft => Some("adapter_model.safetensors"),
            Self::Mlx => Some("adapters.safetensors"),
            Self::Gguf { .. } => None,
        }
    }

    /// The module of a tensor in safetensors, and which part of its change it is.
    fn part_of(self, tensor: &str) -> Option<(String, Part)> {
        let (prefix, suffixes) = match self {
            Self::Peft => ("base_model.model.", PEFT),
            Self::Mlx | Self::Gguf { .. } => ("", MLX),
        };
        let module = tensor.strip_prefix(prefix)?;
        suffixes.iter().find_map(|&(suffix, part)| Some((module.strip_suffix(suffix)?.to_owned(), part)))
    }

    /// Whether a matrix has a row for each of its inputs, and not for each of its outputs.
    pub(super) fn is_transposed(self) -> bool {
        self == Self::Mlx
    }
}

/// A tensor's part in the change of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The first matrix of a linear layer.
    A,
    /// The second one.
    B,
    /// The first matrix of an embedding.
    EmbeddingA,
    /// The second one.
    EmbeddingB,
    /// The lengths of rows, of DoRA.
    Magnitude,
    /// All values of a module.
    Saved,
    /// Those of the module beside the matrices.
    Base,
}

impl Part {
    pub(super) const COUNT: usize = 7;
    pub(super) const ALL: [Self; Self::COUNT] =
        [Self::A, Self::B, Self::EmbeddingA, Self::EmbeddingB, Self::Magnitude, Self::Saved, Self::Base];
}

/// The ends of the names of tensors; the first that fits is meant.
const PEFT: &[(&str, Part)] = &[
    (".lora_A.weight", Part::A),
    (".lora_B.weight", Part::B),
    (".lora_embedding_A", Part::EmbeddingA),
    (".lora_embedding_B", Part::EmbeddingB),
    (".lora_magnitude_vector", Part::Magnitude),
    (".base_layer.weight", Part::Base),
    (".weight", Part::Saved),
];
const MLX: &[(&str, Part)] = &[(".lora_a", Part::A), (".lora_b", Part::B), (".m", Part::Magnitude)];

/// The files of an adapter.
pub(super) struct Files {
    /// The content of the settings, and what errors call them.
    settings: Option<(String, Cow<'static, [u8]>)>,
    /// What errors call the file of matrices.
    pub(super) location: String,
    bytes: Arc<FileBytes>,
    /// The tensors, by name.
    pub(super) tensors: Vec<Tensor>,
    pub(super) format: Format,
}

/// A tensor of an adapter.
pub(super) struct Tensor {
    pub(super) entry: Entry,
    /// The module that it changes, and its part in that; `None` for tensors of other kinds.
    pub(super) part: Option<(String, Part)>,
}

impl Files {
    pub(super) fn open(source: &ModelSource) -> Result<Self> {
        let source = match source {
            // Converters write GGUF files into the folder of what they convert.
            ModelSource::Folder(folder) if folder.join(CONFIG).exists() => Source::Folder(folder.clone()),
            ModelSource::Folder(path) => Source::at(path)?,
            ModelSource::Embedded(files) => Source::embedded(files)?,
            _ => return Err(Error::unsupported(OPERATION, "pass the folder of an adapter, or a GGUF file")),
        };
        let mut files = match source {
            Source::Gguf(gguf) => Self::of_gguf(Lora::of(*gguf)?),
            source => Self::of_folder(&source)?,
        };
        files.tensors.sort_by(|a, b| a.entry.name.cmp(&b.entry.name));
        Ok(files)
    }

    fn of_gguf(Lora { architecture, alpha, location, bytes, tensors }: Lora) -> Self {
        let tensors = tensors.into_iter().map(|(entry, module)| {
            let part = |(name, matrix)| (name, if matrix == 0 { Part::A } else { Part::B });
            Tensor { entry, part: module.map(part) }
        });
        let tensors = tensors.collect();
        Self { settings: None, location, bytes, tensors, format: Format::Gguf { architecture, alpha } }
    }

    fn of_folder(source: &Source) -> Result<Self> {
        let missing = |name: &str, message: &'static str| {
            Error::new(ErrorKind::NotFound, OPERATION, message).with_context("path", source.locate(name))
        };
        let settings = source.read(CONFIG)?;
        let settings = settings.ok_or_else(|| missing(CONFIG, "the folder has no adapter_config.json"))?;
        for format in [Format::Peft, Format::Mlx] {
            let Some(name) = format.weights() else { continue };
            let Some(bytes) = source.map(name)? else { continue };
            let location = source.locate(name);
            let entries = read_header(&location, &bytes)?.into_iter();
            let tensors = entries.map(|entry| Tensor { part: format.part_of(&entry.name), entry }).collect();
            let settings = Some((source.locate(CONFIG), settings));
            return Ok(Self { settings, location, bytes: Arc::new(bytes), tensors, format });
        }
        let message = "the folder has neither adapter_model.safetensors, which PEFT writes with safetensors, nor \
                       adapters.safetensors of mlx-lm";
        Err(missing("adapter_model.safetensors", message))
    }

    /// The bytes of a tensor.
    pub(super) fn bytes_of(&self, entry: &Entry) -> &[u8] {
        self.bytes.get(entry.range.clone()).unwrap_or_default()
    }

    /// The name and the content of each file.
    pub(super) fn contents(&self) -> impl Iterator<Item = (&'static str, &[u8])> {
        let settings = self.settings.iter().map(|(_, text)| (CONFIG, &**text));
        settings.chain([(self.format.weights().unwrap_or("adapter.gguf"), &**self.bytes)])
    }

    /// Identifies the adapter by all of its settings and tensors.
    pub(super) fn identity(&self) -> String {
        let settings: Cow<'_, [u8]> = match (&self.settings, self.format) {
            (Some((_, text)), _) => Cow::Borrowed(text),
            (None, format) => Cow::Owned(format!("{format:?}").into_bytes()),
        };
        let entries = self.tensors.iter().map(|tensor| &tensor.entry);
        let tensors =
            entries.map(|entry| (&*entry.name, entry.element, &entry.shape[..], self.bytes_of(entry)));
        fingerprint_of("mlxcel adapter 1", &settings, tensors)
    }

    /// The settings of formats that have a file of them.
    pub(super) fn config(&self) -> Result<Option<Config>> {
        let settings = self.settings.as_ref();
        settings.map(|(location, text)| Config::parse(location.clone(), text)).transpose()
    }
}

/// The settings of a LoRA adapter.
pub(super) enum Settings<'a> {
    Peft(config::Settings<'a>),
    Mlx(mlx::Settings<'a>),
    /// The scale is this by the rank, or one.
    Gguf(Option<f64>),
}

impl<'a> Settings<'a> {
    /// Reads them from the fields of their file, if the format has one.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](mlxcel_core::ErrorKind::Unsupported) for another kind of adapter, and for a field that
    /// is set and is not honoured; [`Corrupt`](mlxcel_core::ErrorKind::Corrupt) for values out of range.
    pub(super) fn read(format: Format, fields: Option<Fields<'a>>) -> Result<Self> {
        match (format, fields) {
            (Format::Peft, Some(fields)) => config::Settings::read(fields).map(Self::Peft),
            (Format::Mlx, Some(fields)) => mlx::Settings::read(fields).map(Self::Mlx),
            (Format::Gguf { alpha, .. }, _) => Ok(Self::Gguf(alpha)),
            (Format::Peft | Format::Mlx, None) => {
                Err(Error::new(ErrorKind::Internal, OPERATION, "the settings of the adapter were not read"))
            }
        }
    }

    /// Refuses settings of changes that an adapter cannot make beside the weights.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](mlxcel_core::ErrorKind::Unsupported), naming the field.
    pub(super) fn expect_unmerged(&self) -> Result<()> {
        match self {
            Self::Peft(settings) => settings.expect_unmerged(),
            Self::Mlx(settings) => settings.expect_unmerged(),
            Self::Gguf(_) => Ok(()),
        }
    }

    /// Whether `module` is among those that the adapter lists, if it does.
    pub(super) fn targets(&self, module: &str) -> bool {
        match self {
            Self::Peft(settings) => settings.targets(module),
            Self::Mlx(settings) => settings.targets(module),
            Self::Gguf(_) => true,
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
            Self::Gguf(alpha) => Ok(alpha.map_or(1.0, |alpha| (alpha / rank as f64) as f32)),
        }
    }
}
