//! Byte-level BPE tokenizers, as in GPT-2 and most later models.

use mlxcel_core::{Result, TokenId};
use serde_json::{Value, json};

use super::super::metadata::Metadata;
use super::Kind;
use super::splits::{self, Split, Splitting};
use super::vocabulary::Vocabulary;
use super::writer::Writer;

const SPLITTING: &str = "tokenizer.ggml.pre";

/// What such tokenizers decide.
pub(super) fn kind(metadata: Metadata<'_>) -> Result<Kind> {
    let none: fn(&str) -> Option<TokenId> = |_| None;
    let Splitting { begins, ends, pair, .. } = *splitting(metadata)?;
    Ok(Kind { begins, ends, pair, defaults: none })
}

/// Writes normalizer, splitting, decoder and model.
pub(super) fn write(
    out: &mut Writer<'_>,
    metadata: Metadata<'_>,
    vocabulary: &Vocabulary<'_>,
) -> Result<Kind> {
    let splitting = splitting(metadata)?;
    let normalizer = if splitting.composes { json!({"type": "NFC"}) } else { Value::Null };
    out.raw(",\"normalizer\":");
    out.value(&normalizer)?;
    out.raw(",\"pre_tokenizer\":");
    out.value(&json!({"type": "Sequence", "pretokenizers": steps(splitting)}))?;
    out.raw(",\"decoder\":");
    out.value(
        &json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
    )?;
    out.raw(",\"model\":{\"type\":\"BPE\",\"unk_token\":null,\"ignore_merges\":");
    out.value(&splitting.whole_words)?;
    out.raw(",\"vocab\":");
    super::ids(out, vocabulary, |token| token.text.into())?;
    out.raw(",\"merges\":");
    super::merges(out, metadata)?;
    out.raw("}");
    kind(metadata)
}

/// How texts are split.
fn splitting(metadata: Metadata<'_>) -> Result<&'static Splitting> {
    let Some(name) = metadata.text(SPLITTING)? else {
        let message = "the file does not say how texts are split into words, as those made before May 2024; use one \
                       that was made later";
        return Err(metadata.unsupported(SPLITTING, message.to_owned()));
    };
    splits::find(name).ok_or_else(|| {
        let message = format!(
            "the splitting of texts called '{}' is not known; supported: {}",
            name.escape_debug(),
            splits::names().collect::<Vec<_>>().join(", ")
        );
        metadata.unsupported(SPLITTING, message)
    })
}

/// The steps that split a text.
fn steps(splitting: &Splitting) -> Vec<Value> {
    let letters = |splits: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": splits});
    let mut steps = Vec::new();
    let mut splits_itself = false;
    for split in splitting.splits {
        match split {
            Split::Expression(expression) => steps.push(json!({
                "type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": false,
            })),
            Split::Digits => steps.push(json!({"type": "Digits", "individual_digits": true})),
            Split::Gpt2 => splits_itself = true,
        }
    }
    steps.push(letters(splits_itself));
    steps
}
