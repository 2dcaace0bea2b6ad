//! End-of-sequence tokens.

use std::collections::HashSet;

use mlxcel_core::{Result, TokenId};

use super::super::metadata::Metadata;
use super::vocabulary::{TokenType, Vocabulary};

/// Keys of tokens that end a turn or a message.
const KEYS: [&str; 2] = ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];
/// Control tokens that end a turn or a text whatever the file says of them, as `llama.cpp` has it: files name
/// one, and models of conversations end with another.
const NAMES: [&str; 18] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<turn|>",
    "[e~[",
    "<end_of_utterance>",
    "<EOT>",
    "[EOT]",
    "[EOS]",
    "<｜end▁of▁sentence｜>",
];
/// Where both of these are, another one ends a message and not the turn.
const HARMONY: [&str; 2] = ["<|return|>", "<|call|>"];
const END_OF_MESSAGE: &str = "<|end|>";

/// Where a turn of Gemma 4 waits for the result of a tool. Its files call it a token of users, so that it is
/// seen.
const TOOL_RESPONSE: &str = "<|tool_response>";

/// The tokens, that which the file calls the end first.
pub(super) fn tokens(
    metadata: Metadata<'_>,
    vocabulary: &Vocabulary<'_>,
    end: Option<TokenId>,
) -> Result<Vec<TokenId>> {
    let mut ids: Vec<_> = end.into_iter().collect();
    for key in KEYS {
        ids.extend(metadata.token(key, vocabulary.len())?);
    }
    let control = || vocabulary.tokens().filter(|token| token.ty == TokenType::Control);
    let awaits =
        vocabulary.tokens().filter(|token| token.ty != TokenType::Normal && token.text == TOOL_RESPONSE);
    ids.extend(awaits.map(|token| token.id));
    let harmony = HARMONY.iter().all(|name| control().any(|token| token.text == *name));
    let named = control().filter(|token| NAMES.contains(&token.text));
    ids.extend(named.filter(|token| !harmony || token.text != END_OF_MESSAGE).map(|token| token.id));
    let mut seen = HashSet::new();
    ids.retain(|id| seen.insert(*id));
    Ok(ids)
}
