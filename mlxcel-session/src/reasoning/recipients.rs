//! The recipient that an answer of Functionary 3.2 begins with: `all` is the user, any other one a tool.

use mlxcel_core::{Result, TokenId};

use crate::chat::AnswerPart;
use crate::chat::marks::{RECIPIENT, TO_ALL};
use crate::tokenizer::Tokenizer;

/// How many tokens of a prompt's end are looked at.
const TAIL: usize = 4;

/// Removes the recipient `all`. Any other one is returned with the mark before it, which the prompt ends with.
#[derive(Clone, Debug, Default)]
pub(super) struct Recipients {
    is_named: bool,
    /// What came before it is decided.
    held: String,
}

impl Recipients {
    /// After `prompt`, which ends with the mark of a recipient unless it continues a message.
    pub(super) fn after(tokenizer: &Tokenizer, prompt: &[TokenId]) -> Result<Self> {
        let tail = tokenizer.decode(&prompt[prompt.len().saturating_sub(TAIL)..], false)?;
        Ok(Self { is_named: !tail.ends_with(RECIPIENT), held: String::new() })
    }

    pub(super) fn push(&mut self, piece: &str) -> Vec<AnswerPart> {
        if self.is_named {
            return vec![AnswerPart::Answer(piece.to_owned())];
        }
        self.held.push_str(piece);
        let all = format!("{}\n", &TO_ALL[RECIPIENT.len()..]);
        if all.starts_with(&self.held) && all != self.held {
            return Vec::new();
        }
        self.is_named = true;
        let held = std::mem::take(&mut self.held);
        let given = held.strip_prefix(&all).map_or_else(|| format!("{RECIPIENT}{held}"), str::to_owned);
        if given.is_empty() { Vec::new() } else { vec![AnswerPart::Answer(given)] }
    }
}
