//! SentencePiece's unigram model, as XLM-RoBERTa has it: the most likely way to split words into tokens.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use mlxcel_core::{Result, TokenId};
use serde_json::{Value, json};

use super::super::metadata::Metadata;
use super::vocabulary::Vocabulary;
use super::writer::Writer;
use super::{Kind, Pair};

const CHARACTERS: &str = "tokenizer.ggml.precompiled_charsmap";
const PREFIX: &str = "tokenizer.ggml.add_space_prefix";
/// Far above any published map of characters, in bytes.
const LONGEST_MAP: usize = 1 << 24;

/// What such tokenizers decide.
pub(super) fn kind() -> Kind {
    let defaults: fn(&str) -> Option<TokenId> = |role| match role {
        "unknown" => Some(2),
        "eos" => Some(1),
        "padding" => Some(0),
        _ => None,
    };
    Kind { begins: false, ends: true, pair: Pair::Apart, defaults }
}

/// Writes normalizer, splitting, decoder and model.
pub(super) fn write(out: &mut Writer<'_>, metadata: Metadata<'_>, vocabulary: &Vocabulary<'_>) -> Result<()> {
    let normalizer =
        characters(metadata)?.map(|map| json!({"type": "Precompiled", "precompiled_charsmap": map}));
    out.raw(",\"normalizer\":");
    out.value(&normalizer.unwrap_or(Value::Null))?;
    let scheme = if metadata.flag(PREFIX)?.unwrap_or(true) { "always" } else { "never" };
    let spaces = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true});
    out.raw(",\"pre_tokenizer\":");
    out.value(&json!({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, spaces]}))?;
    out.raw(",\"decoder\":");
    out.value(&spaces)?;
    let unknown = super::special(metadata, vocabulary, &kind(), "unknown")?;
    out.raw(",\"model\":{\"type\":\"Unigram\",\"byte_fallback\":false,\"unk_id\":");
    out.value(&unknown.map_or(Value::Null, Value::from))?;
    out.raw(",\"vocab\":");
    out.list(vocabulary.tokens().zip(vocabulary.scores()), |out, (token, score)| {
        out.value(&json!([token.text, score]))
    })?;
    out.raw("}");
    Ok(())
}

/// The map by which characters are normalized, as `tokenizer.json` writes it.
fn characters(metadata: Metadata<'_>) -> Result<Option<String>> {
    let Some(map) = metadata.numbers(CHARACTERS)? else { return Ok(None) };
    if map.count > LONGEST_MAP {
        return Err(metadata.corrupt(CHARACTERS, format!("{} bytes are more than {LONGEST_MAP}", map.count)));
    }
    // Stored as bytes with a sign or without.
    let byte = |number: f64| {
        let byte = number as i64;
        let is_byte = (-128..256).contains(&byte);
        is_byte.then_some(byte as u8).ok_or_else(|| metadata.wrong(CHARACTERS, "bytes"))
    };
    let bytes = map.iter().map(byte).collect::<Result<Vec<_>>>()?;
    Ok((!bytes.is_empty()).then(|| BASE64_STANDARD.encode(bytes)))
}
