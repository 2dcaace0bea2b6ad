//! What a checkpoint says about texts that are embedded or ranked: heads, prompts, length and case.

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
    /// Whether the classifier's score is that of the answer yes against the answer no.
    pub(crate) answers: bool,
    prompts: BTreeMap<String, String>,
    default_prompt: Option<String>,
    /// How many tokens of a text are embedded, special ones included.
    pub(crate) most_tokens: Option<usize>,
    /// Whether the first tokens of a longer text are left out, not the last.
    pub(crate) cuts_left: bool,
}

/// `config_sentence_transformers.json`.
#[derive(Deserialize)]
struct Prompts {
    #[serde(default)]
    prompts: BTreeMap<String, String>,
    default_prompt_name: Option<String>,
}

/// The names of the file with [`Reading`], by the network; the first that is there counts.
const READING: [&str; 5] = [
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_xlm-roberta_config.json",
];

/// How sentence-transformers reads texts.
#[derive(Default, Deserialize)]
struct Reading {
    #[serde(default)]
    do_lower_case: bool,
    max_seq_length: Option<usize>,
}

/// The parts of `config.json` that tell classifiers and how long a text may be.
#[derive(Default, Deserialize)]
struct Network {
    architectures: Option<Vec<String>>,
    max_position_embeddings: Option<f64>,
}

/// The part of `tokenizer_config.json` that says how long a text may be.
#[derive(Default, Deserialize)]
struct Length {
    /// In tokens; a large number is no limit.
    model_max_length: Option<f64>,
    truncation_side: Option<Side>,
}

/// Where tokens of longer texts are left out.
#[derive(PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Side {
    Left,
    Right,
}

/// The first file with [`Reading`] that is there.
fn reading(source: &ModelSource) -> Result<Reading> {
    for name in READING {
        if let Some(reading) = files::read_json(source, name)? {
            return Ok(reading);
        }
    }
    Ok(Reading::default())
}

/// Whether the tokenizer is to read texts in small letters.
pub(crate) fn is_lower_case(source: &ModelSource) -> Result<bool> {
    Ok(reading(source)?.do_lower_case)
}

impl TextSettings {
    /// The settings of the checkpoint at `source`.
    pub(crate) fn read(source: &ModelSource) -> Result<Self> {
        let network: Network = files::read_json(source, "config.json")?.unwrap_or_default();
        let architectures = network.architectures.unwrap_or_default();
        let (mut classifier, mut answers) = (None, false);
        if architectures.iter().any(|name| name.ends_with("ForSequenceClassification")) {
            let checkpoint = Checkpoint::from_source(source)?;
            classifier = TextHead::of_classifier(&checkpoint, &checkpoint.decoder()?)?;
            answers = TextHead::answers_yes_or_no(&checkpoint)?;
        }
        let prompts: Option<Prompts> = files::read_json(source, "config_sentence_transformers.json")?;
        let (prompts, default_prompt) =
            prompts.map(|file| (file.prompts, file.default_prompt_name)).unwrap_or_default();
        let embedding = TextHead::of_embeddings(source)?;
        let mut most_tokens = reading(source)?.max_seq_length.filter(|most| *most > 0);
        let mut length = Length::default();
        if embedding.is_some() {
            length = files::read_json(source, "tokenizer_config.json")?.unwrap_or_default();
            let lengths = length.model_max_length.into_iter().chain(network.max_position_embeddings);
            let shortest = lengths.filter(|most| *most >= 1.0).map(|most| most as usize).min();
            most_tokens = most_tokens.or(shortest);
        }
        let cuts_left = length.truncation_side == Some(Side::Left);
        Ok(Self { embedding, classifier, answers, prompts, default_prompt, most_tokens, cuts_left })
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
}
