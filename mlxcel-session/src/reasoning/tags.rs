//! Reasoning between two tags at the beginning of an answer.

use mlxcel_core::{Result, TokenId};

use super::begun;
use crate::chat::AnswerPart;
use crate::tokenizer::Tokenizer;

/// How many tokens of a prompt's end are looked at for a tag of several tokens.
const TAIL: usize = 16;

#[derive(Clone, Debug)]
pub(super) struct Tags {
    open: String,
    close: String,
    place: Place,
    /// What is not given yet.
    held: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Nothing came but space.
    Start,
    Reasoning,
    Answer,
}

impl Tags {
    pub(super) fn new(open: impl Into<String>, close: impl Into<String>) -> Self {
        Self { open: open.into(), close: close.into(), place: Place::Start, held: String::new() }
    }

    /// After `prompt`, which may end within reasoning: with the tag that opens it, or with that tag somewhere
    /// in its last turn. What messages spell out is no such token, and special tokens end a turn.
    pub(super) fn after(open: &str, close: &str, tokenizer: &Tokenizer, prompt: &[TokenId]) -> Result<Self> {
        let mut tags = Self::new(open, close);
        let tail = tokenizer.decode(&prompt[prompt.len().saturating_sub(TAIL)..], false)?;
        let ids = tokenizer.token_id(open).zip(tokenizer.token_id(close));
        let last = ids.and_then(|(open, close)| {
            let is_mark = |token: &&TokenId| **token == open || **token == close;
            let turn =
                prompt.iter().rev().take_while(|token| is_mark(token) || !tokenizer.is_special(**token));
            turn.copied().find(|token| is_mark(&token)).map(|token| token == open)
        });
        if last.unwrap_or_else(|| tail.trim_end().ends_with(open.trim_end())) {
            tags.place = Place::Reasoning;
        }
        Ok(tags)
    }

    /// Whether a tag has begun reasoning that none has ended.
    #[cfg(feature = "structured")]
    pub(super) fn is_in_reasoning(&self) -> bool {
        self.place == Place::Reasoning
    }

    pub(super) fn push(&mut self, piece: &str) -> Vec<AnswerPart> {
        self.held.push_str(piece);
        let mut parts = Vec::new();
        if self.place == Place::Start {
            let lead = self.held.len() - self.held.trim_start().len();
            let text = &self.held[lead..];
            if text.starts_with(&self.open) {
                self.place = Place::Reasoning;
                self.held.replace_range(lead..lead + self.open.len(), "");
            } else if text.starts_with(&self.close) {
                // A model that decides by itself whether to reason says so when it does not.
                self.place = Place::Answer;
                self.held.drain(..lead + self.close.len());
            } else if self.open.starts_with(text) || self.close.starts_with(text) {
                return parts;
            } else {
                self.place = Place::Answer;
            }
        }
        if self.place == Place::Reasoning {
            let Some(at) = self.held.find(&self.close) else {
                let certain = self.held.len() - begun(&self.held, &self.close);
                let given = self.held.drain(..certain).collect();
                parts.extend(part(given, AnswerPart::Reasoning));
                return parts;
            };
            parts.extend(part(self.held[..at].to_owned(), AnswerPart::Reasoning));
            self.held.drain(..at + self.close.len());
            self.place = Place::Answer;
        }
        parts.extend(part(std::mem::take(&mut self.held), AnswerPart::Answer));
        parts
    }

    pub(super) fn finish(&mut self) -> Vec<AnswerPart> {
        let held = std::mem::take(&mut self.held);
        let kind = if self.place == Place::Reasoning { AnswerPart::Reasoning } else { AnswerPart::Answer };
        part(held, kind).into_iter().collect()
    }
}

/// The part that says `text`, if that says anything.
fn part(text: String, kind: fn(String) -> AnswerPart) -> Option<AnswerPart> {
    if text.is_empty() { None } else { Some(kind(text)) }
}
