//! The files of a checkpoint that a copy of it needs besides weights and config.

use std::collections::BTreeSet;
use std::path::Path;

use mlxcel_core::Result;

use crate::checkpoint::Checkpoint;
use crate::text_head::TextHead;

/// The folder of further chat templates.
const TEMPLATES: &str = "additional_chat_templates";

impl Checkpoint {
    /// The names of the small files to copy with a checkpoint: tokenizer, chat templates, modules of
    /// sentence-transformers, other settings and licences, sorted. Files that are rewritten are not listed:
    /// `config.json`, an index of shards, the manifest of a bundle, a model card.
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
    const EXTENSIONS: [&str; 6] = ["json", "jsonl", "jinja", "txt", "model", "tiktoken"];
    const TERMS: [&str; 3] = ["LICEN", "NOTICE", "USE_POLICY"];
    let extension = Path::new(name).extension().and_then(|extension| extension.to_str());
    (extension.is_some_and(|extension| EXTENSIONS.contains(&extension))
        || TERMS.iter().any(|terms| name.starts_with(terms)))
        && !name.contains('/')
        && name != "config.json"
        && name != "bundle.json"
        && !name.ends_with(".safetensors.index.json")
}
