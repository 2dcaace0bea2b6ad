//! What a checkpoint says about texts that are embedded or ranked: heads, prompts, and case.

use std::collections::BTreeMap;

use mlxcel_core::{Error, ErrorKind, ModelSource, Result};
use mlxcel_models::Checkpoint;
use mlxcel_models::text_head::TextHead;
use serde::Deserialize;

use crate::files;

/// The settings of one checkpoint.
#[derive(Debug, Default)]
pub(crate) struct TextSettings {
    /// The layers behind the hidden states that make embeddings, by `modules.json`.
    pub(crate) embedding: Option<TextHead>,
    /// The layers that make scores of classes.
    pub(crate) classifier: Option<TextHead>,
    prompts: BTreeMap<String, String>,
    default_prompt: Option<String>,
    lower_case: bool,
    /// How many tokens of a text are embedded, special ones included.
    pub(crate) most_tokens: Option<usize>,
}

/// `config_sentence_transformers.json`.
#[derive(Deserialize)]
struct Prompts {
    #[serde(default)]
    prompts: BTreeMap<String, String>,
    default_prompt_name: Option<String>,
}

/// The names of the file with [`Reading`], by the network; the first that is there counts.
const READING: [&str; 3] =
    ["sentence_bert_config.json", "sentence_roberta_config.json", "sentence_xlm-roberta_config.json"];

/// How sentence-transformers reads texts.
#[derive(Default, Deserialize)]
struct Reading {
    #[serde(default)]
    do_lower_case: bool,
    max_seq_length: Option<usize>,
}

/// The part of `config.json` that tells classifiers.
#[derive(Deserialize)]
struct Architectures {
    #[serde(default)]
    architectures: Option<Vec<String>>,
}

impl TextSettings {
    /// The settings of the checkpoint at `source`.
    pub(crate) fn read(source: &ModelSource) -> Result<Self> {
        let config: Option<Architectures> = files::read_json(source, "config.json")?;
        let architectures = config.and_then(|config| config.architectures).unwrap_or_default();
        let mut classifier = None;
        if architectures.iter().any(|name| name.ends_with("ForSequenceClassification")) {
            let checkpoint = Checkpoint::from_source(source)?;
            classifier = TextHead::of_classifier(&checkpoint, &checkpoint.decoder()?)?;
        }
        let prompts: Option<Prompts> = files::read_json(source, "config_sentence_transformers.json")?;
        let (prompts, default_prompt) =
            prompts.map(|file| (file.prompts, file.default_prompt_name)).unwrap_or_default();
        let mut reading = None;
        for name in READING {
            reading = match reading {
                None => files::read_json::<Reading>(source, name)?,
                found => found,
            };
        }
        let Reading { do_lower_case, max_seq_length } = reading.unwrap_or_default();
        Ok(Self {
            embedding: TextHead::of_embeddings(source)?,
            classifier,
            prompts,
            default_prompt,
            lower_case: do_lower_case,
            most_tokens: max_seq_length.filter(|most| *most > 0),
        })
    }

    /// The prompt called `name`.
    pub(crate) fn prompt(&self, name: &str) -> Result<&str> {
        self.prompts.get(name).map(String::as_str).ok_or_else(|| {
            let known = self.prompts.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            Error::new(ErrorKind::NotFound, "embed text", "the checkpoint has no prompt of this name")
                .with_context("prompt", name.escape_debug())
                .with_context("known", known)
        })
    }

    /// The first of these prompts that the checkpoint has.
    pub(crate) fn first_prompt(&self, names: &[&str]) -> Option<&str> {
        names.iter().find_map(|&name| self.prompts.get(name)).map(String::as_str)
    }

    /// The prompt of texts for which none is named.
    pub(crate) fn default_prompt(&self) -> Result<&str> {
        self.default_prompt.as_deref().map_or(Ok(""), |name| self.prompt(name))
    }

    /// `text` as the tokenizer is to read it.
    pub(crate) fn prepared(&self, prompt: &str, text: &str) -> String {
        let text = format!("{prompt}{text}");
        // Each character by itself, whatever its neighbours are, as a normalizer does it.
        if self.lower_case { text.chars().flat_map(char::to_lowercase).collect() } else { text }
    }
}
