//! Checkpoints: config, weights, and the other files of the folder.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;
use std::sync::OnceLock;

use mlxcel_core::{Error, ErrorKind, Result, TokenId};

use crate::config::{Config, Fields};
use crate::element::ElementType;
use crate::gguf::BlockType;
use crate::source::Source;
use crate::weights::{Stored, Weights};
use crate::{files, fingerprint};

const CONFIG: &str = "config.json";
const GGUF: &str = ".gguf";
/// What the names of the tensors of another checkpoint's draft head begin with.
pub(crate) const DRAFT_HEAD: &str = "draft_head.";
pub(crate) const OPERATION: &str = "open checkpoint";

/// An open checkpoint: a folder in Hugging Face's layout, or GGUF files.
///
/// Weights are memory-mapped: opening takes milliseconds, and bytes are read from disk on first access. The
/// files must not be modified while the checkpoint is open; replacing them by renaming is safe. A
/// `Checkpoint` is [`Send`] and [`Sync`] and meant to be shared in an [`Arc`](std::sync::Arc).
pub struct Checkpoint {
    source: Source,
    config_bytes: Cow<'static, [u8]>,
    config: Config,
    model_type: String,
    stop_tokens: Vec<TokenId>,
    weights: Weights,
    fingerprint: OnceLock<String>,
    /// The checkpoint of a draft head that was trained for this one's model.
    draft_head: Option<Box<Checkpoint>>,
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
    /// Reads config and weights of a source; `stop_tokens` finds what ends a text.
    pub(crate) fn read(
        source: Source,
        stop_tokens: impl FnOnce(&Source, Fields<'_>, &str) -> Result<Vec<TokenId>>,
    ) -> Result<Self> {
        let Some(config_bytes) = source.read(CONFIG)? else {
            return Err(Error::new(
                ErrorKind::NotFound,
                OPERATION,
                "config.json is missing; pass the folder of a downloaded Hugging Face checkpoint",
            )
            .with_context("path", source.locate(CONFIG)));
        };
        let config = Config::parse(source.locate(CONFIG), &config_bytes)?;
        // The library speculators writes only the second.
        let mut model_type = config.fields().text("model_type")?;
        model_type = model_type.or(config.fields().text("speculators_model_type")?);
        let model_type = model_type.ok_or_else(|| config.fields().absent("model_type"))?.to_owned();
        let stop_tokens = stop_tokens(&source, config.fields(), &model_type)?;
        let weights = Weights::open(&source)?;
        let fingerprint = OnceLock::new();
        Ok(Self {
            source,
            config_bytes,
            config,
            model_type,
            stop_tokens,
            weights,
            fingerprint,
            draft_head: None,
        })
    }

    /// The same with a draft head that was trained for its model.
    pub(crate) fn with_draft_head(mut self, head: Self) -> Self {
        self.draft_head = Some(Box::new(head));
        self
    }

    /// The checkpoint of the draft head that it was opened with.
    pub(crate) fn draft_head(&self) -> Option<&Self> {
        self.draft_head.as_deref()
    }

    /// The checkpoint that has a tensor, and its name there.
    fn owner<'a>(&self, name: &'a str) -> (&Self, &'a str) {
        let owned = self.draft_head().zip(name.strip_prefix(DRAFT_HEAD));
        owned.unwrap_or((self, name))
    }

    /// The architecture of a GGUF file.
    pub(crate) fn gguf_architecture(&self) -> Option<&'static str> {
        match &self.source {
            Source::Gguf(gguf) => gguf.architecture(),
            Source::Folder(_) | Source::Embedded(_) => None,
        }
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
    /// The errors of [`read_file`](crate::read_file).
    pub fn file(&self, name: &str) -> Result<Option<Cow<'_, [u8]>>> {
        self.source.read(name)
    }

    /// Like [`file`](Self::file), but `None` for files that are generated from a GGUF file's metadata. For
    /// copying a checkpoint, where the GGUF file is copied.
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
        self.located(name).map(|(view, _)| view)
    }

    /// All tensors with their names, sorted by name.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, TensorView<'_>)> {
        self.weights.iter().map(|(name, stored)| (name, self.view(stored)))
    }

    /// The weight files: name and mapped content.
    pub fn weight_files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.weights.files()
    }

    /// The weight files to copy with a checkpoint: [`weight_files`](Self::weight_files) under names with
    /// which the copy can be opened, without data computed at load.
    pub fn copied_weight_files(&self) -> impl Iterator<Item = (Cow<'_, str>, &[u8])> {
        let is_gguf = matches!(self.source, Source::Gguf(_));
        self.weights.stored_files().map(move |(name, content)| match name {
            // A GGUF file may have been opened under any name.
            _ if is_gguf && !name.ends_with(GGUF) => (format!("{name}{GGUF}").into(), content),
            _ => (name.into(), content),
        })
    }

    /// Fails if a weight file is a link that leads out of the folder. For copying a checkpoint to other
    /// people.
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

    /// A fingerprint of config and weights: 64 hexadecimal digits of a SHA-256.
    ///
    /// It covers `config.json` and the name, type, shape and content of each tensor: up to 4 KiB completely,
    /// larger ones in five samples of 256 bytes, because reading gigabytes would take longer than loading
    /// the model. Trained, merged or converted weights differ almost everywhere and so have other
    /// fingerprints. It does not protect against deliberate changes of a few values. That of a checkpoint
    /// with the [draft head of another](mlxcel_core::LoadOptions::draft_head) covers both.
    pub fn fingerprint(&self) -> String {
        let own = || fingerprint::fingerprint(&self.config_bytes, &self.weights);
        let all = || match self.draft_head() {
            None => own(),
            Some(head) => fingerprint::joined([own(), head.fingerprint()]),
        };
        self.fingerprint.get_or_init(all).clone()
    }

    /// A fingerprint of the files as they are now: of [`fingerprint`](Self::fingerprint), and of the size and
    /// the time of modification of each weight file. `None` for embedded files, where the system does not
    /// tell times, and within two seconds after a file was written, when it may change under the same time.
    ///
    /// It tells whether what was derived from all bytes of the files still belongs to them, unless someone
    /// changes bytes and sets the time back.
    pub fn stamp(&self) -> Option<String> {
        let mut files = self.weights.written()?;
        if let Some(head) = self.draft_head() {
            files.extend(head.weights.written()?);
        }
        fingerprint::stamp(&self.fingerprint(), &files)
    }

    /// The fields of `config.json`.
    pub(crate) fn config(&self) -> Fields<'_> {
        self.config.fields()
    }

    /// Where its files are.
    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    /// Whether there is a tensor called `name`.
    pub(crate) fn has(&self, name: &str) -> bool {
        let (owner, name) = self.owner(name);
        owner.weights.get(name).is_some()
    }

    /// The tensor `name` of the weights.
    pub(crate) fn located(&self, name: &str) -> Result<(TensorView<'_>, &str)> {
        let (owner, name) = self.owner(name);
        owner.stored(name).map(|stored| (owner.view(stored), owner.weights.location(stored)))
    }

    /// The blocks of the tensor called `name`, where a GGUF file has it packed; its elements are their bytes
    /// then.
    pub(crate) fn blocks(&self, name: &str) -> Option<BlockType> {
        let (owner, name) = self.owner(name);
        owner.weights.get(name)?.blocks
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
