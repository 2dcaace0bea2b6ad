//! Opening checkpoints.

use std::path::Path;

use mlxcel_core::{Error, LoadOptions, ModelPart, ModelSource, Result, TokenId};

use crate::checkpoint::{Checkpoint, OPERATION};
use crate::config::{Config, Fields};
use crate::families::{self, TextModel};
use crate::source::Source;

const GENERATION_CONFIG: &str = "generation_config.json";

impl Checkpoint {
    /// Opens the checkpoint in the folder `path`: `config.json`, `generation_config.json` if present, and
    /// `model.safetensors` or else the shards that `model.safetensors.index.json` lists.
    ///
    /// `path` can also be a GGUF file, any file of a split GGUF model, or a folder with one GGUF model and no
    /// `config.json`.
    ///
    /// # Errors
    ///
    /// [`NotFound`](mlxcel_core::ErrorKind::NotFound) for a missing folder or file;
    /// [`InvalidInput`](mlxcel_core::ErrorKind::InvalidInput) if `path` is another kind of file, or a
    /// folder with several GGUF models; [`Corrupt`](mlxcel_core::ErrorKind::Corrupt) for invalid config
    /// or weights; [`Unsupported`](mlxcel_core::ErrorKind::Unsupported) for weights in other formats and
    /// unknown GGUF architectures. [`decoder`](Self::decoder) checks whether the model itself is
    /// supported.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        read(Source::at(path.as_ref())?)
    }

    /// A checkpoint embedded in the application's binary: pairs of name and content, as from
    /// [`include_bytes!`].
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open).
    pub fn from_files(files: &'static [(&'static str, &'static [u8])]) -> Result<Self> {
        read(Source::embedded(files)?)
    }

    /// Opens the checkpoint that a [`ModelSource`] names; the first thing that a
    /// [`Backend`](mlxcel_core::Backend) does.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open), and [`Unsupported`](mlxcel_core::ErrorKind::Unsupported) for a source
    /// that is not a checkpoint.
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

    /// As [`from_source`](Self::from_source), with the checkpoint of the [draft
    /// head](LoadOptions::draft_head) if `options` ask for it or for the states that it reads: for engines,
    /// before [`decoder_for`](Self::decoder_for).
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open), of both.
    pub fn for_options(source: &ModelSource, options: &LoadOptions) -> Result<Self> {
        let own = Self::from_source(source)?;
        let is_read = options.part == ModelPart::DraftHead || options.output_states;
        Ok(match options.draft_head.as_ref().filter(|_| is_read) {
            Some(head) => own.with_draft_head(Self::from_source(head)?),
            None => own,
        })
    }

    /// Opens the files again that it was opened from, as they are now; `None` for embedded files.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open).
    pub fn reopen(&self) -> Result<Option<Self>> {
        let Some(path) = self.path() else { return Ok(None) };
        let own = Self::open(path)?;
        Ok(match self.draft_head() {
            None => Some(own),
            Some(head) => head.reopen()?.map(|head| own.with_draft_head(head)),
        })
    }
}

fn read(source: Source) -> Result<Checkpoint> {
    Checkpoint::read(source, stop_tokens)
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
    let text = TextModel::of(model_type, config)?;
    for config in [config, text.config] {
        if let Some(ids) = config.token_ids(KEY)? {
            return Ok(ids);
        }
    }
    let assumed = families::find(text.model_type).map_or(&[][..], |family| family.stop_tokens);
    Ok(if config.mentions(KEY) || text.config.mentions(KEY) { Vec::new() } else { assumed.to_vec() })
}
