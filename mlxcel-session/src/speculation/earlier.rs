//! Drafting from earlier texts.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use mlxcel_core::{Result, TokenId};

use super::runs::{END, Runs};
use super::{DraftContext, DraftSource, Drafter};
use crate::sync::unpoisoned;

/// The shortest run of tokens that is looked up.
const LEAST: usize = 3;

/// How many of the last tokens are looked up.
const LOOKED_UP: usize = 16;

/// Drafts the continuation of an earlier text: it looks up the longest suffix, from 3 to 16 tokens, that
/// occurred in earlier texts, and of its last 1,024 occurrences the last. Useful for many similar requests.
///
/// It learns every finished text and keeps the most recent ones, up to the given number of tokens, in about
/// 60 bytes per token.
#[derive(Clone, Debug)]
pub struct EarlierTexts(Arc<Mutex<Texts>>);

impl Default for EarlierTexts {
    /// The last 262,144 tokens.
    fn default() -> Self {
        Self::new(1 << 18)
    }
}

impl EarlierTexts {
    /// Keeps at most `tokens` tokens.
    pub fn new(tokens: usize) -> Self {
        Self(Arc::new(Mutex::new(Texts::new(tokens))))
    }

    fn lock(&self) -> MutexGuard<'_, Texts> {
        unpoisoned(self.0.lock())
    }
}

impl DraftSource for EarlierTexts {
    fn drafter(&self, _: &DraftContext<'_>) -> Result<Box<dyn Drafter>> {
        Ok(Box::new(self.clone()))
    }

    fn learn(&self, tokens: &[TokenId]) {
        self.lock().add(tokens);
    }
}

impl Drafter for EarlierTexts {
    fn draft(&mut self, tokens: &[TokenId], most: usize) -> Result<Vec<TokenId>> {
        let last = &tokens[tokens.len().saturating_sub(LOOKED_UP)..];
        Ok(self.lock().following(last, most).to_vec())
    }
}

/// Texts consecutively, each with [`END`] behind it.
struct Texts {
    most: usize,
    tokens: Vec<TokenId>,
    runs: Runs,
}

impl fmt::Debug for Texts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Texts").field("tokens", &self.tokens.len()).finish_non_exhaustive()
    }
}

impl Texts {
    fn new(most: usize) -> Self {
        Self { most, tokens: Vec::new(), runs: Runs::new(LEAST, LOOKED_UP) }
    }

    fn add(&mut self, text: &[TokenId]) {
        let text = &text[text.len().saturating_sub(self.most / 2)..];
        if self.tokens.len() + text.len() + 1 > self.most {
            // The later half stays: so each token is put in at most twice as often.
            let kept = self.most / 2 - text.len();
            let kept = self.tokens.split_off(self.tokens.len().saturating_sub(kept));
            *self = Self { tokens: kept, ..Self::new(self.most) };
        }
        self.tokens.extend(text.iter().chain([&END]));
        self.runs.add(&self.tokens);
    }

    /// At most `most` tokens that followed the longest end of `tokens` that is here.
    fn following(&self, tokens: &[TokenId], most: usize) -> &[TokenId] {
        let place = self.runs.find(&self.tokens, tokens).unwrap_or(self.tokens.len());
        let behind = &self.tokens[place..];
        let end = behind.iter().position(|&token| token == END).unwrap_or(behind.len());
        &behind[..end.min(most)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_continuation_ends_with_its_text() {
        let mut texts = Texts::new(100);
        texts.add(&[1, 2, 3, 4, 5]);
        texts.add(&[9, 1, 2, 3]);
        assert_eq!(texts.following(&[8, 1, 2, 3], 5), [4, 5], "nothing follows in the last text");
        assert_eq!(texts.following(&[1, 2, 3], 1), [4]);
        assert!(texts.following(&[2, 3], 5).is_empty() && texts.following(&[3, 4, 5], 5).is_empty());
    }

    #[test]
    fn old_texts_are_evicted_for_new_ones() {
        let mut texts = Texts::new(100);
        for text in 0..50u32 {
            let tokens: Vec<_> = (0..30).map(|i| text * 30 + i).collect();
            texts.add(&tokens);
            assert!(texts.tokens.len() <= 100, "{}", texts.tokens.len());
            assert_eq!(texts.following(&tokens[..3], 2), &tokens[3..5]);
        }
        assert!(texts.following(&[0, 1, 2], 2).is_empty());
        texts.add(&[7; 1000]);
        assert_eq!(texts.following(&[7, 7, 7], 1), [7], "of a text that is too long the end is kept");
    }
}
