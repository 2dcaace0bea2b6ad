//! SentencePiece BPE: of all adjacent pairs that form a token, the one with the highest score is merged
//! first.
//!
//! An equivalent list of merges contains each way to split a token into two others, by descending score, as
//! transformers converts such vocabularies. A space is prepended to the text and after control tokens, and
//! spaces are characters of tokens. Bytes of characters without a token have tokens of their own.

use std::collections::HashMap;

use mlxcel_core::{Result, TokenId};
use serde_json::{Value, json};

use super::super::metadata::Metadata;
use super::vocabulary::{TOKENS, TokenType, Vocabulary};
use super::writer::Writer;
use super::{Kind, Pair};
use crate::files::FileKind;

const PREFIX: &str = "tokenizer.ggml.add_space_prefix";
const SPACE: &str = "▁";
/// How much work the ways to make tokens may be, in bytes that are compared: a hundred times what the largest
/// vocabularies take.
const MOST_WORK: usize = 1 << 30;
/// How long a token may be that is made of others, in bytes.
const LONGEST_MADE: usize = 512;
/// How many bytes of JSON a merge takes beside its two tokens: `["",""]` and a comma.
const MERGE: usize = 8;

/// What such tokenizers decide.
pub(super) fn kind() -> Kind {
    let defaults: fn(&str) -> Option<TokenId> = |role| match role {
        "unknown" => Some(0),
        "bos" => Some(1),
        "eos" => Some(2),
        _ => None,
    };
    Kind { begins: true, ends: false, pair: Pair::None, defaults }
}

/// Writes normalizer, decoder and model. If tokens are `scored`, merges follow from the scores, and a text
/// begins with a space where the file does not say; else merges are in the file.
pub(super) fn write(
    out: &mut Writer<'_>,
    metadata: Metadata<'_>,
    vocabulary: &Vocabulary<'_>,
    scored: bool,
) -> Result<()> {
    let unknown =
        super::special(metadata, vocabulary, &kind(), "unknown")?.and_then(|id| vocabulary.text(id));
    let prefix = metadata.flag(PREFIX)?.unwrap_or(scored);
    let replace =
        |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let mut normalizers = vec![replace(" ", SPACE)];
    let mut decoders = vec![replace(SPACE, " "), json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
    if prefix {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": SPACE}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    out.raw(",\"normalizer\":");
    out.value(&json!({"type": "Sequence", "normalizers": normalizers}))?;
    out.raw(",\"pre_tokenizer\":null,\"decoder\":");
    out.value(&json!({"type": "Sequence", "decoders": decoders}))?;
    let bytes = vocabulary.tokens().any(|token| token.ty == TokenType::Byte);
    out.raw(",\"model\":{\"type\":\"BPE\",\"fuse_unk\":true,\"byte_fallback\":");
    out.value(&bytes)?;
    out.raw(",\"unk_token\":");
    out.value(&unknown.map_or(Value::Null, Value::from))?;
    out.raw(",\"vocab\":");
    super::ids(out, vocabulary, |token| token.text.into())?;
    out.raw(",\"merges\":");
    if scored {
        let merges = merges(metadata, vocabulary)?;
        out.list(merges.into_iter(), |out, merge| out.value(&[merge.left, merge.right]))?;
    } else {
        super::merges(out, metadata)?;
    }
    out.raw("}");
    Ok(())
}

/// Two tokens that make another.
struct Merge<'a> {
    left: &'a str,
    right: &'a str,
    score: f64,
}

/// Each way to make a token of two others, in the order in which they are joined.
fn merges<'a>(metadata: Metadata<'_>, vocabulary: &Vocabulary<'a>) -> Result<Vec<Merge<'a>>> {
    let made = |ty| matches!(ty, TokenType::Normal | TokenType::UserDefined | TokenType::Unused);
    let ids: HashMap<&str, TokenId> =
        vocabulary.tokens().filter(|token| made(token.ty)).map(|token| (token.text, token.id)).collect();
    let (mut merges, mut work, mut written) = (Vec::new(), 0usize, 0);
    for (token, score) in vocabulary.tokens().zip(vocabulary.scores()) {
        // The last of several tokens that are written alike is the one that is known.
        if ids.get(token.text) != Some(&token.id) || token.text.len() > LONGEST_MADE {
            continue;
        }
        work = work.saturating_add(token.text.len() * token.text.len());
        if work > MOST_WORK {
            return Err(metadata.corrupt(TOKENS, "the tokens are too long".to_owned()));
        }
        let from = merges.len();
        for (at, _) in token.text.char_indices().skip(1) {
            let (left, right) = token.text.split_at(at);
            if let (Some(first), Some(second)) = (ids.get(left), ids.get(right)) {
                merges.push((*first, *second, Merge { left, right, score }));
            }
        }
        // What does not fit into the file that is written is refused before it takes memory.
        written += (merges.len() - from) * (token.text.len() + MERGE);
        if written as u64 > FileKind::Tokenizer.limit() {
            return Err(metadata.corrupt(TOKENS, "too many tokens are made of others".to_owned()));
        }
        merges[from..].sort_by_key(|(first, second, _)| (*first, *second));
    }
    let mut merges: Vec<_> = merges.into_iter().map(|(_, _, merge)| merge).collect();
    let letters = |text: &str| text.chars().count();
    merges.sort_by(|a, b| {
        let by_score = b.score.total_cmp(&a.score);
        by_score.then_with(|| (letters(b.left), letters(b.right)).cmp(&(letters(a.left), letters(a.right))))
    });
    Ok(merges)
}
