//! WordPiece, as BERT has it: the longest token that a word begins with, then the longest that goes on from
//! there.
//!
//! Files mark what begins a word with `▁`; originals mark what does not, with `##`.

use mlxcel_core::{Result, TokenId};
use serde_json::json;

use super::super::metadata::Metadata;
use super::vocabulary::{Token, TokenType, Vocabulary};
use super::writer::Writer;
use super::{Kind, Pair};

const LOWERCASE: &str = "tokenizer.ggml.normalizer.lowercase";
const BEGIN: char = '▁';
/// Words of more letters are unknown.
const LONGEST_WORD: usize = 100;

/// What such tokenizers decide.
pub(super) fn kind() -> Kind {
    let defaults: fn(&str) -> Option<TokenId> = |role| match role {
        "padding" => Some(0),
        "unknown" => Some(100),
        "bos" => Some(101),
        "eos" => Some(102),
        _ => None,
    };
    Kind { begins: true, ends: true, pair: Pair::OfTypes, defaults }
}

/// Writes normalizer, splitting, decoder and model.
pub(super) fn write(out: &mut Writer<'_>, metadata: Metadata<'_>, vocabulary: &Vocabulary<'_>) -> Result<()> {
    let has_capitals = || {
        let is_word = |token: &Token<'_>| token.ty == TokenType::Normal && !token.text.contains('[');
        vocabulary.tokens().filter(is_word).any(|token| token.text.chars().any(char::is_uppercase))
    };
    // Older files do not say; a vocabulary with capitals has a use for them.
    let lowercase = metadata.flag(LOWERCASE)?.unwrap_or_else(|| !has_capitals());
    out.raw(",\"normalizer\":");
    out.value(&json!({
        "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null,
        "lowercase": lowercase,
    }))?;
    out.raw(",\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},\"decoder\":");
    out.value(&json!({"type": "WordPiece", "prefix": "##", "cleanup": true}))?;
    let unknown = super::special(metadata, vocabulary, &kind(), "unknown")?;
    out.raw(",\"model\":{\"type\":\"WordPiece\",\"continuing_subword_prefix\":\"##\",\"unk_token\":");
    out.value(&unknown.and_then(|id| vocabulary.text(id)).unwrap_or("[UNK]"))?;
    out.raw(",\"max_input_chars_per_word\":");
    out.value(&LONGEST_WORD)?;
    out.raw(",\"vocab\":");
    super::ids(out, vocabulary, |token| match token.text.strip_prefix(BEGIN) {
        _ if token.ty == TokenType::Control => token.text.into(),
        Some(begin) => begin.into(),
        None => format!("##{}", token.text).into(),
    })?;
    out.raw("}");
    Ok(())
}
