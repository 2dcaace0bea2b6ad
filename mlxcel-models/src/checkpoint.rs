//! A checkpoint: settings, weights and the files beside them.

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

/// A checkpoint, open for reading: a folder of Hugging Face's layout, or GGUF files.
///
/// Weights are mapped into memory, not read: opening takes milliseconds, and a byte of them comes from the disk when
/// it is first looked at. The files must not be modified while the checkpoint is open; replacing them by renaming
/// others into their place is fine. It is [`Send`] and [`Sync`] and meant to be shared in an
/// [`Arc`](std::sync::Arc).
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
    /// The elements, row-major and little-endian, at no particular alignment.
    pub bytes: &'a [u8],
}

impl Checkpoint {
    /// Opens the checkpoint in the folder `path`: `config.json`, `generation_config.json` if there is one, and
    /// `model.safetensors` or else the shards that `model.safetensors.index.json` lists.
    ///
    /// Or opens a GGUF file, whose metadata has all of that: `path` is the file, any of those that a model is split into, or a folder
    /// without `config.json` that has one such model.
    ///
    /// # Errors
    ///
    /// [`NotFound`](ErrorKind::NotFound) for a folder or file that is missing,
    /// [`InvalidInput`](ErrorKind::InvalidInput) where `path` is another file, or a folder of several models in GGUF files,
    /// [`Corrupt`](ErrorKind::Corrupt) for settings
    /// or weights that are not what their format demands, [`Unsupported`](ErrorKind::Unsupported) for weights in other
    /// formats, and for GGUF files of an architecture that is not known. Whether the model itself is supported is [`decoder`](Self::decoder)'s to say.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::read(Source::at(path.as_ref())?)
    }

    /// A checkpoint whose files are part of the application's binary: pairs of name and content, as
    /// [`include_bytes!`] gives them.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open).
    pub fn from_files(files: &'static [(&'static str, &'static [u8])]) -> Result<Self> {
        Self::read(Source::embedded(files)?)
    }

    /// The checkpoint that a [`ModelSource`] names: what a [`Backend`](mlxcel_core::Backend) does first.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open), and [`Unsupported`](ErrorKind::Unsupported) for a source that is no checkpoint.
    pub fn from_source(source: &ModelSource) -> Result<Self> {
        match source {
            ModelSource::Folder(folder) => Self::open(folder),
            ModelSource::Embedded(files) => Self::from_files(files),
            ModelSource::BuiltIn(name) => Err(Error::unsupported(
                OPERATION,
                format!("'{}' is a model that only another engine has; give a folder", name.escape_debug()),
            )),
            _ => Err(Error::unsupported(OPERATION, "models from this kind of source are not supported")),
        }
    }

    fn read(source: Source) -> Result<Self> {
        let Some(config_bytes) = source.read(CONFIG)? else {
            return Err(Error::new(
                ErrorKind::NotFound,
                OPERATION,
                "there is no config.json; give the folder of a downloaded Hugging Face checkpoint",
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

    /// The architecture's name in `config.json`, such as `llama`.
    pub fn model_type(&self) -> &str {
        &self.model_type
    }

    /// The token ids that end a text: `eos_token_id` of `generation_config.json`, else of `config.json`.
    ///
    /// Empty where the checkpoint says there are none.
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

    /// Reads a file of the checkpoint such as `tokenizer.json`, or answers `None` if there is none of that name.
    ///
    /// This is for the small files beside the weights; weights come from [`tensor`](Self::tensor).
    ///
    /// # Errors
    ///
    /// The errors of [`files::read`](crate::files::read).
    pub fn file(&self, name: &str) -> Result<Option<Cow<'_, [u8]>>> {
        self.source.read(name)
    }

    /// As [`file`](Self::file), but none where the metadata of a GGUF file makes what has this name: for whoever copies that file too.
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

    /// The tensor called `name` in the weights.
    ///
    /// # Errors
    ///
    /// [`NotFound`](ErrorKind::NotFound) if there is none.
    pub fn tensor(&self, name: &str) -> Result<TensorView<'_>> {
        self.stored(name).map(|stored| self.view(stored))
    }

    /// All tensors with their names, in the order of the names.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, TensorView<'_>)> {
        self.weights.iter().map(|(name, stored)| (name, self.view(stored)))
    }

    /// The files that hold the weights: the name of each, and its content, which is mapped and not read.
    pub fn weight_files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.weights.files()
    }

    /// The files to be copied by whoever copies the weights: [`weight_files`](Self::weight_files), under names by which a folder of them
    /// is opened, and without what was computed from them when they were opened.
    pub fn copied_weight_files(&self) -> impl Iterator<Item = (Cow<'_, str>, &[u8])> {
        let is_gguf = matches!(self.source, Source::Gguf(_));
        self.weights.stored_files().map(move |(name, content)| match name {
            // A GGUF file may have been opened under any name.
            _ if is_gguf && !name.ends_with(GGUF) => (format!("{name}{GGUF}").into(), content),
            _ => (name.into(), content),
        })
    }

    /// Refuses files of weights that are links out of the folder: for whoever copies them to others.
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

    /// The bytes of a weight of this checkpoint's [`Decoder`]: those in the mapped files where they lie together there, else a
    /// copy.
    ///
    /// Of a packed weight they are the codes, in its [`stored_shape`](WeightRef::stored_shape); its further parts are weights to
    /// be asked for in the same way.
    ///
    /// # Errors
    ///
    /// [`NotFound`](ErrorKind::NotFound) if there is no such tensor, [`InvalidInput`](ErrorKind::InvalidInput) if the
    /// tensor differs from the reference, which is then one of another checkpoint.
    pub fn weight(&self, weight: &WeightRef) -> Result<WeightView<'_>> {
        gather::view(self, weight)
    }

    /// The bytes of a weight where they lie in the mapped files: in one part, or in one for each of the tensors that it is
    /// [stacked](WeightRef::stack) of. `None` where they must be gathered, which [`weight`](Self::weight) does.
    ///
    /// # Errors
    ///
    /// The errors of [`weight`](Self::weight).
    pub fn mapped_weight(&self, weight: &WeightRef) -> Result<Option<Vec<&[u8]>>> {
        gather::mapped(self, weight)
    }

    /// Writes consecutive rows of a weight, of all dimensions but the innermost, into `out`: for whoever takes a weight piece by piece.
    ///
    /// # Errors
    ///
    /// The errors of [`weight`](Self::weight); [`InvalidInput`](ErrorKind::InvalidInput) for rows that it does not have, or an `out` that is
    /// not as long as they are.
    pub fn weight_rows(&self, weight: &WeightRef, rows: Range<usize>, out: &mut [u8]) -> Result<()> {
        gather::rows(self, weight, rows, out)
    }

    /// The values of a weight, packed or of floats, as elements of another type: F32, F16 or BF16, row-major.
    ///
    /// # Errors
    ///
    /// Those of [`weight`](Self::weight), [`Unsupported`](ErrorKind::Unsupported) for other types, and
    /// [`ResourceExhausted`](ErrorKind::ResourceExhausted).
    pub fn expanded_weight(&self, weight: &WeightRef, element: ElementType) -> Result<Vec<u8>> {
        quantize::values(self, weight, element)
    }

    /// What network this is: every layer, and for each role in it the weight that plays it.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) for an unknown `model_type` or a setting that is not implemented,
    /// [`Corrupt`](ErrorKind::Corrupt) for settings that contradict each other or the tensors' shapes,
    /// [`NotFound`](ErrorKind::NotFound) for a missing tensor. The error names the field or the tensor.
    pub fn decoder(&self) -> Result<Decoder> {
        families::describe(self)
    }

    /// An identity of model and weights: 64 hexadecimal digits of a SHA-256.
    ///
    /// It covers `config.json` and of each tensor the name, type, shape and content: whole up to 4 KiB, of larger ones
    /// five samples of 256 bytes, since reading gigabytes would cost more than loading the model. Weights that were
    /// trained, merged or converted differ nearly everywhere, so such checkpoints differ in their fingerprints. It is
    /// no protection against somebody who alters a few values on purpose.
    pub fn fingerprint(&self) -> String {
        self.fingerprint.get_or_init(|| fingerprint::fingerprint(&self.config_bytes, &self.weights)).clone()
    }

    /// The fields of `config.json`.
    pub(crate) fn config(&self) -> Fields<'_> {
        self.config.fields()
    }

    /// The names of the small files that go with the weights wherever they go: tokenizer, templates, other settings, licences.
    /// What is written anew with them is not among these: `config.json`, an index of shards, what belongs to a bundle.
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

    /// The tensor called `name` and the file that holds it.
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
                "the checkpoint has no such tensor; it is incomplete, or not the model that its config.json says",
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
