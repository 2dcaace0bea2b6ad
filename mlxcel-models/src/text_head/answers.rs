//! Rerankers of sentence-transformers that are decoders: the module that compares the logits of two tokens.

use std::collections::HashMap;

use mlxcel_core::{ModelSource, Result, TokenId};
use serde::Deserialize;

use crate::config::Config;
use crate::files;
use crate::source::read_file;

const TOKENIZER: &str = "tokenizer.json";

/// The part of `tokenizer.json` that has the ids of tokens.
#[derive(Deserialize)]
struct Tokenizer {
    model: Vocabulary,
}

#[derive(Deserialize)]
struct Vocabulary {
    vocab: HashMap<String, TokenId>,
}

/// Fails unless the score that `config` describes is the logit of "yes" less that of "no", as in
/// Qwen3-Reranker, whose prompt is the only one that rerankers of this kind get.
pub(super) fn expect_yes_or_no(source: &ModelSource, config: &Config) -> Result<()> {
    let config = config.fields();
    let bytes = read_file(source, TOKENIZER)?.unwrap_or_default();
    let tokenizer = files::parse_json::<Tokenizer>(TOKENIZER, &bytes, "it has no vocabulary by token").ok();
    let id = |token: &str| tokenizer.as_ref()?.model.vocab.get(token).copied();
    for (key, token) in [("true_token_id", "yes"), ("false_token_id", "no")] {
        let given = config.size(key, 0..=TokenId::MAX as usize)?;
        if given.is_none() || given != id(token).map(|id| id as usize) {
            let message = format!("rerankers by another token than '{token}' are not supported");
            return Err(config.unsupported(key, message));
        }
    }
    Ok(())
}
