//! Checkpoints: config, weights, and the other files of the folder.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;

use mlxcel_core::{Error, ErrorKind, ModelSource, Result, TokenId};

use crate::config::{Config, Fields};
use crate::decoder::{Decoder, WeightRef};
use crate::element::ElementType;
use crate::gather::{self, WeightView};
use crate::gguf::BlockType;
use crate::source::Source;
use crate::weights::{Stored, Weights};
use crate::{families, files, fingerprint, quantize};

const CONFIG: &str = "config.json";
const GGUF: &str = ".gguf";
const GENERATION_CONFIG: &str = "generation_config.json";
const OPERATION: &str = "open checkpoint";

/// An open checkpoint: a folder in Hugging Face's layout, or GGUF files.
///
/// Weights are memory-mapped: opening takes milliseconds, and bytes are read from disk on first access. The files must
/// not be modified while the checkpoint is open; replacing them by renaming is safe. A `Checkpoint` is [`Send`] and
/// [`Sync`] and meant to be shared in an [`Arc`](std::sync::Arc).
pub struct Checkpoint {
    source: Source,
    config_bytes: Cow<'static, [u8]>,
    config: Config,
    model_type: String,
    stop_tokens: Vec<TokenId>,
    weights: Weights,
    fingerprint: OnceLock<String>,
}

/// A tensor's type, shape and bytes, borrowed from a [`Checkpoint`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorView<'a> {
    /// The type of the elements.
    pub element_type: ElementType,
    /// The sizes of the dimensions, outermost first; empty for a scalar.
    pub shape: Vec<usize>,
    /// The elements, row-major, little-endian and unaligned.
    pub bytes: &'a [u8],
}

impl Checkpoint {
    /// Opens the checkpoint in the folder `path`: `config.json`, `generation_config.json` if present, and
    /// `model.safetensors` or else the shards that `model.safetensors.index.json` lists.
    ///
    /// `path` can also be a GGUF file, any file of a split GGUF model, or a folder with one GGUF model and no
    /// `config.json`.
    ///
    /// # Errors
    ///
    /// [`NotFound`](ErrorKind::NotFound) for a missing folder or file; [`InvalidInput`](ErrorKind::InvalidInput) if
    /// `path` is another kind of file, or a folder with several GGUF models; [`Corrupt`](ErrorKind::Corrupt) for
    /// invalid config or weights; [`Unsupported`](ErrorKind::Unsupported) for weights in other formats and unknown GGUF
    /// architectures. [`decoder`](Self::decoder) checks whether the model itself is supported.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::read(Source::at(path.as_ref())?)
    }

    /// A checkpoint embedded in the application's binary: pairs of name and content, as from [`include_bytes!`].
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open).
    pub fn from_files(files: &'static [(&'static str, &'static [u8])]) -> Result<Self> {
        Self::read(Source::embedded(files)?)
    }

    /// Opens the checkpoint that a [`ModelSource`] names; the first thing that a [`Backend`](mlxcel_core::Backend)
    /// does.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open), and [`Unsupported`](ErrorKind::Unsupported) for a source that is not a checkpoint.
    pub fn from_source(source: &ModelSource) -> Result<Self> {
        match source {
            ModelSource::Folder(folder) => Self::open(folder),
            ModelSource::Embedded(files) => Self::from_files(files),
            ModelSource::BuiltIn(name) => Err(Error::unsupported(
                OPERATION,
                format!("'{}' is a model of another engine; pass a folder", name.escape_debug()),
            )),
            _ => Err(Error::unsupported(OPERATION, "models from this kind of source are not supported")),
        }
    }

    fn read(source: Source) -> Result<Self> {
        let Some(config_bytes) = source.read(CONFIG)? else {
            return Err(Error::new(
                ErrorKind::NotFound,
                OPERATION,
                "config.json is missing; pass the folder of a downloaded Hugging Face checkpoint",
            )
            .with_context("path", source.locate(CONFIG)));
        };
        let config = Config::parse(source.locate(CONFIG), &config_bytes)?;
        let model_type = config.fields().text("model_type")?;
        let model_type = model_type.ok_or_else(|| config.fields().absent("model_type"))?.to_owned();
        let stop_tokens = stop_tokens(&source, config.fields(), &model_type)?;
        let weights = Weights::open(&source)?;
        let fingerprint = OnceLock::new();
        Ok(Self { source, config_bytes, config, model_type, stop_tokens, weights, fingerprint })
    }

    /// Whether it is a GGUF file, whose tensors have names and orders of their own.
    pub(crate) fn is_gguf(&self) -> bool {
        matches!(self.source, Source::Gguf(_))
    }

    /// The `model_type` of `config.json`, such as `llama`.
    pub fn model_type(&self) -> &str {
        &self.model_type
    }

    /// The end-of-sequence token ids: `eos_token_id` of `generation_config.json`, else of `config.json`.
    ///
    /// Empty if the checkpoint has none.
    pub fn stop_tokens(&self) -> &[TokenId] {
        &self.stop_tokens
    }

    /// The folder or the GGUF file that was opened, or `None` for embedded files.
    pub fn path(&self) -> Option<&Path> {
        match &self.source {
            Source::Folder(folder) => Some(folder),
            Source::Embedded(_) => None,
            Source::Gguf(gguf) => gguf.place().path(),
        }
    }

    /// Reads a file of the checkpoint such as `tokenizer.json`; `None` if it does not exist.
    ///
    /// For the small files; weights are read with [`tensor`](Self::tensor).
    ///
    /// # Errors
    ///
    /// The errors of [`files::read`](crate::files::read).
    pub fn file(&self, name: &str) -> Result<Option<Cow<'_, [u8]>>> {
        self.source.read(name)
    }

    /// Like [`file`](Self::file), but `None` for files that are generated from a GGUF file's metadata. For copying a
    /// checkpoint, where the GGUF file is copied.
    ///
    /// # Errors
    ///
    /// The errors of [`file`](Self::file).
    pub fn stored_file(&self, name: &str) -> Result<Option<Cow<'_, [u8]>>> {
        match &self.source {
            Source::Gguf(gguf) => {
                files::check_name(name, gguf.place().shown())?;
                gguf.place().read_own(name)
            }
            source => source.read(name),
        }
    }

    /// The tensor `name` of the weights.
    ///
    /// # Errors
    ///
    /// [`NotFound`](ErrorKind::NotFound) if there is none.
    pub fn tensor(&self, name: &str) -> Result<TensorView<'_>> {
        self.stored(name).map(|stored| self.view(stored))
    }

    /// All tensors with their names, sorted by name.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, TensorView<'_>)> {
        self.weights.iter().map(|(name, stored)| (name, self.view(stored)))
    }

    /// The weight files: name and mapped content.
    pub fn weight_files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.weights.files()
    }

    /// The weight files to copy with a checkpoint: [`weight_files`](Self::weight_files) under names with which the copy
    /// can be opened, without data computed at load.
    pub fn copied_weight_files(&self) -> impl Iterator<Item = (Cow<'_, str>, &[u8])> {
        let is_gguf = self.is_gguf();
        self.weights.stored_files().map(move |(name, content)| match name {
            // A GGUF file may have been opened under any name.
            _ if is_gguf && !name.ends_with(GGUF) => (format!("{name}{GGUF}").into(), content),
            _ => (name.into(), content),
        })
    }

    /// Fails if a weight file is a link that leads out of the folder. For copying a checkpoint to other people.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput), naming the file.
    pub fn expect_own_weights(&self) -> Result<()> {
        match &self.source {
            Source::Folder(folder) => {
                self.weights.files().try_for_each(|(name, _)| files::expect_inside(folder, name))
            }
            Source::Embedded(_) => Ok(()),
            Source::Gguf(gguf) => gguf.place().expect_inside(),
        }
    }

    /// The bytes of a weight of this checkpoint's [`Decoder`]: borrowed from the mapped files if they are contiguous
    /// there, else copied.
    ///
    /// For a packed weight these are the codes, in its [`stored_shape`](WeightRef::stored_shape). Its other parts are
    /// separate weights.
    ///
    /// # Errors
    ///
    /// [`NotFound`](ErrorKind::NotFound) if the tensor does not exist, [`InvalidInput`](ErrorKind::InvalidInput) if it
    /// does not match the reference, which then belongs to another checkpoint.
    pub fn weight(&self, weight: &WeightRef) -> Result<WeightView<'_>> {
        gather::view(self, weight)
    }

    /// The bytes of a weight in the mapped files: one part, or one for each tensor that it is
    /// [stacked](WeightRef::stack) from. `None` if they have to be gathered, as [`weight`](Self::weight) does.
    ///
    /// # Errors
    ///
    /// The errors of [`weight`](Self::weight).
    pub fn mapped_weight(&self, weight: &WeightRef) -> Result<Option<Vec<&[u8]>>> {
        gather::mapped(self, weight)
    }

    /// Copies consecutive rows of a weight into `out`, to load a weight in pieces. All dimensions but the innermost
    /// count as rows.
    ///
    /// # Errors
    ///
    /// The errors of [`weight`](Self::weight); [`InvalidInput`](ErrorKind::InvalidInput) for rows out of range, or an
    /// `out` of another length.
    pub fn weight_rows(&self, weight: &WeightRef, rows: Range<usize>, out: &mut [u8]) -> Result<()> {
        gather::rows(self, weight, rows, out)
    }

    /// The values of a weight, packed or floating-point, converted to F32, F16 or BF16, row-major.
    ///
    /// # Errors
    ///
    /// The errors of [`weight`](Self::weight); [`Unsupported`](ErrorKind::Unsupported) for other types;
    /// [`ResourceExhausted`](ErrorKind::ResourceExhausted).
    pub fn expanded_weight(&self, weight: &WeightRef, element: ElementType) -> Result<Vec<u8>> {
        quantize::values(self, weight, element)
    }

    /// The description of the network: every layer, with a weight for each role.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) for an unknown `model_type` or an unsupported config field;
    /// [`Corrupt`](ErrorKind::Corrupt) for a config that is inconsistent with itself or with the tensors' shapes;
    /// [`NotFound`](ErrorKind::NotFound) for a missing tensor. The error names the field or the tensor.
    pub fn decoder(&self) -> Result<Decoder> {
        families::describe(self)
    }

    /// A fingerprint of config and weights: 64 hexadecimal digits of a SHA-256.
    ///
    /// It covers `config.json` and the name, type, shape and content of each tensor: up to 4 KiB completely, larger
    /// ones in five samples of 256 bytes, because reading gigabytes would take longer than loading the model. Trained,
    /// merged or converted weights differ almost everywhere and so have other fingerprints. It does not protect against
    /// deliberate changes of a few values.
    pub fn fingerprint(&self) -> String {
        self.fingerprint.get_or_init(|| fingerprint::fingerprint(&self.config_bytes, &self.weights)).clone()
    }

    /// The fields of `config.json`.
    pub(crate) fn config(&self) -> Fields<'_> {
        self.config.fields()
    }

    /// The names of the small files that go with the weights wherever they go: tokenizer, templates, other settings, licences.
    /// Files that are rewritten are not listed: `config.json`, an index of shards, what belongs to a bundle.
    pub(crate) fn side_files(&self) -> Result<Vec<String>> {
        const EXTENSIONS: [&str; 6] = ["json", "jsonl", "jinja", "txt", "model", "tiktoken"];
        let wanted = |name: &String| {
            let known = Path::new(name).extension().and_then(|extension| extension.to_str());
            let by_name = known.is_some_and(|known| EXTENSIONS.contains(&known));
            (by_name || name.starts_with("LICEN"))
                && name != CONFIG
                && name != "bundle.json"
                && !name.ends_with(".safetensors.index.json")
        };
        Ok(self.source.names()?.into_iter().filter(wanted).collect())
    }

    /// Whether there is a tensor called `name`.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.weights.get(name).is_some()
    }

    /// The tensor `name` of the weights.
    pub(crate) fn located(&self, name: &str) -> Result<(TensorView<'_>, &str)> {
        self.stored(name).map(|stored| (self.view(stored), self.weights.location(stored)))
    }

    /// The blocks of the tensor called `name`, where a GGUF file has it packed; its elements are their bytes then.
    pub(crate) fn blocks(&self, name: &str) -> Option<BlockType> {
        self.weights.get(name)?.blocks
    }

    fn stored(&self, name: &str) -> Result<&Stored> {
        self.weights.get(name).ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                "read weight",
                "the checkpoint does not have this tensor; it is incomplete, or does not match its config.json",
            )
            .with_context("tensor", name.escape_debug())
            .with_context("path", self.weights_place())
        })
    }

    fn view(&self, stored: &Stored) -> TensorView<'_> {
        TensorView {
            element_type: stored.element,
            shape: stored.shape.clone(),
            bytes: self.weights.bytes(stored),
        }
    }

    fn weights_place(&self) -> String {
        match &self.source {
            Source::Folder(folder) => folder.display().to_string(),
            Source::Embedded(_) => "embedded files".to_owned(),
            Source::Gguf(gguf) => gguf.place().shown(),
        }
    }
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpoint")
            .field("path", &self.path())
            .field("model_type", &self.model_type)
            .field("stop_tokens", &self.stop_tokens)
            .field("files", &self.weights.file_count())
            .field("tensors", &self.weights.iter().count())
            .finish_non_exhaustive()
    }
}

/// What ends a text: the setting for generation, else that of the model, else what its family assumes.
fn stop_tokens(source: &Source, config: Fields<'_>, model_type: &str) -> Result<Vec<TokenId>> {
    const KEY: &str = "eos_token_id";
    if let Some(content) = source.read(GENERATION_CONFIG)? {
        let generation = Config::parse(source.locate(GENERATION_CONFIG), &content)?;
        if let Some(ids) = generation.fields().token_ids(KEY)? {
            return Ok(ids);
        }
    }
    let text = families::TextModel::of(model_type, config)?;
    for config in [config, text.config] {
        if let Some(ids) = config.token_ids(KEY)? {
            return Ok(ids);
        }
    }
    let assumed = families::find(text.model_type).map_or(&[][..], |family| family.stop_tokens);
    Ok(if config.mentions(KEY) || text.config.mentions(KEY) { Vec::new() } else { assumed.to_vec() })
}
