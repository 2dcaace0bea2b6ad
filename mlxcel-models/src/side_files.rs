//! The files of a checkpoint that a copy of it needs besides weights and config.

use std::collections::BTreeSet;

use mlxcel_core::Result;

use crate::checkpoint::Checkpoint;
use crate::text_head::TextHead;

/// The small files beside weights and `config.json` that are read.
pub const SMALL_FILES: [&str; 19] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "rwkv_vocab_v20230424.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "quantize_config.json",
    "quant_config.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_xlm-roberta_config.json",
];

/// Those that other programs read, and the list of a sentence-transformer's modules.
const OTHERS: [&str; 11] = [
    "modules.json",
    "vocab.txt",
    "vocab.jsonl",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tiktoken.model",
    "tekken.json",
    "params.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
];

/// The folder of further chat templates.
const TEMPLATES: &str = "additional_chat_templates";

impl Checkpoint {
    /// The names of the small files to copy with a checkpoint: tokenizer, chat templates, modules of
    /// sentence-transformers, settings of generation and licences, sorted. Not listed are files that are
    /// rewritten (`config.json`, an index of shards, the manifest of a bundle, a model card) and files that
    /// no program reads with a model.
    ///
    /// # Errors
    ///
    /// [`Io`](mlxcel_core::ErrorKind::Io) for a folder that cannot be listed; [`Corrupt`](mlxcel_core::ErrorKind::Corrupt) for an
    /// invalid `modules.json`.
    pub fn side_files(&self) -> Result<Vec<String>> {
        let mut names: BTreeSet<String> =
            self.source().names()?.into_iter().filter(|name| is_side_file(name)).collect();
        let templates =
            self.source().names_in(TEMPLATES)?.into_iter().filter(|name| name.ends_with(".jinja"));
        names.extend(templates.map(|name| format!("{TEMPLATES}/{name}")));
        names.extend(TextHead::module_files(self)?);
        Ok(names.into_iter().collect())
    }
}

/// Whether a file in the folder of a checkpoint is copied with it.
fn is_side_file(name: &str) -> bool {
    const TERMS: [&str; 3] = ["LICEN", "NOTICE", "USE_POLICY"];
    SMALL_FILES.contains(&name)
        || OTHERS.contains(&name)
        || name.ends_with(".tiktoken")
        || TERMS.iter().any(|terms| name.starts_with(terms))
}
