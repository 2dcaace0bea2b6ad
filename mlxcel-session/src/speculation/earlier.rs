//! Drafting from earlier texts.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use mlxcel_core::{Result, TokenId};

use super::{DraftContext, DraftSource, Drafter};
use crate::sync::unpoisoned;

/// How many of the last tokens are looked up.
const LOOKED_UP: usize = 16;

/// Between texts: no token.
const END: TokenId = TokenId::MAX;

/// Drafts the continuation of an earlier text: it looks up the longest suffix, up to 16 tokens, that occurred
/// in earlier texts. Useful for many similar requests.
///
/// It learns every finished text and keeps the most recent ones, up to the given number of tokens, in a
/// suffix automaton (Blumer et al., 1985) of about 230 bytes per token.
#[derive(Clone, Debug)]
pub struct EarlierTexts {
    inner: Arc<Mutex<Texts>>,
    least: usize,
}

impl Default for EarlierTexts {
    /// The last 262,144 tokens, and runs of at least 3.
    fn default() -> Self {
        Self::new(1 << 18)
    }
}

impl EarlierTexts {
    /// Keeps at most `tokens` tokens.
    pub fn new(tokens: usize) -> Self {
        Self { inner: Arc::new(Mutex::new(Texts::new(tokens))), least: 3 }
    }

    fn lock(&self) -> MutexGuard<'_, Texts> {
        unpoisoned(self.inner.lock())
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
        Ok(self.lock().following(last, self.least, most).to_vec())
    }
}

/// Texts consecutively, and the automaton of all their parts.
struct Texts {
    most: usize,
    tokens: Vec<TokenId>,
    states: Vec<State>,
    /// The state of all tokens.
    last: usize,
}

/// The parts of the texts that end at the same places.
#[derive(Clone, Debug, Default)]
struct State {
    /// The length of the longest of them.
    length: usize,
    /// The state of the longest end of these that ends at more places; none of the empty one.
    link: Option<usize>,
    next: HashMap<TokenId, usize>,
    /// Where one of the places is.
    end: usize,
}

impl fmt::Debug for Texts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Texts").field("tokens", &self.tokens.len()).finish_non_exhaustive()
    }
}

impl Texts {
    fn new(most: usize) -> Self {
        Self { most, tokens: Vec::new(), states: vec![State::default()], last: 0 }
    }

    fn add(&mut self, text: &[TokenId]) {
        let text = &text[text.len().saturating_sub(self.most / 2)..];
        if self.tokens.len() + text.len() + 1 > self.most {
            // The later half stays: so each token is put in at most twice as often.
            let kept = self
                .tokens
                .split_off(self.tokens.len().saturating_sub(self.most / 2 - text.len().min(self.most / 2)));
            *self = Self::new(self.most);
            kept.into_iter().for_each(|token| self.push(token));
        }
        text.iter().for_each(|&token| self.push(token));
        self.push(END);
    }

    /// The construction of Blumer et al.: `token` behind all others.
    fn push(&mut self, token: TokenId) {
        self.tokens.push(token);
        let end = self.tokens.len();
        let new = self.states.len();
        let length = self.states[self.last].length + 1;
        self.states.push(State { length, link: Some(0), next: HashMap::new(), end });
        let mut at = Some(self.last);
        self.last = new;
        while let Some(state) = at {
            let Some(&known) = self.states[state].next.get(&token) else {
                self.states[state].next.insert(token, new);
                at = self.states[state].link;
                continue;
            };
            if self.states[known].length == self.states[state].length + 1 {
                self.states[known].end = end;
                self.states[new].link = Some(known);
                return;
            }
            let copy = self.states.len();
            let length = self.states[state].length + 1;
            self.states.push(State { length, end, ..self.states[known].clone() });
            self.states[known].link = Some(copy);
            self.states[new].link = Some(copy);
            let mut from = Some(state);
            while let Some(state) = from.filter(|&state| self.states[state].next.get(&token) == Some(&known))
            {
                self.states[state].next.insert(token, copy);
                from = self.states[state].link;
            }
            return;
        }
    }

    /// What followed the longest end of `tokens` that is here, if that has at least `least` tokens.
    fn following(&self, tokens: &[TokenId], least: usize, most: usize) -> &[TokenId] {
        let (mut at, mut length) = (0, 0);
        for token in tokens {
            loop {
                if let Some(&next) = self.states[at].next.get(token) {
                    (at, length) = (next, length + 1);
                    break;
                }
                let Some(link) = self.states[at].link else {
                    length = 0;
                    break;
                };
                (at, length) = (link, self.states[link].length);
            }
        }
        if length < least {
            return &[];
        }
        let behind = self.tokens.get(self.states[at].end..).unwrap_or_default();
        let end = behind.iter().position(|&token| token == END).unwrap_or(behind.len());
        &behind[..end.min(most)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What follows the longest end of `tokens` in `texts`, looked up plainly: all answers for the longest.
    fn plainly(texts: &[TokenId], tokens: &[TokenId], least: usize, most: usize) -> Vec<Vec<TokenId>> {
        for length in (least..=tokens.len()).rev() {
            let last = &tokens[tokens.len() - length..];
            let found: Vec<Vec<TokenId>> = (length..=texts.len())
                .filter(|&end| &texts[end - length..end] == last)
                .map(|end| texts[end..].iter().copied().take_while(|&t| t != END).take(most).collect())
                .collect();
            if !found.is_empty() {
                return found;
            }
        }
        vec![Vec::new()]
    }

    #[test]
    fn the_automaton_agrees_with_a_plain_search() {
        let mut state = 1u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % below) as TokenId
        };
        let mut texts = Texts::new(10_000);
        for _ in 0..20 {
            let length = 5 + random(40);
            let text: Vec<_> = (0..length).map(|_| random(4)).collect();
            texts.add(&text);
            for _ in 0..20 {
                let asked: Vec<_> = (0..2 + random(10)).map(|_| random(4)).collect();
                let found = texts.following(&asked, 2, 5).to_vec();
                let expected = plainly(&texts.tokens, &asked, 2, 5);
                assert!(expected.contains(&found), "{asked:?}: {found:?} is none of {expected:?}");
            }
        }
    }

    #[test]
    fn old_texts_are_evicted_for_new_ones() {
        let mut texts = Texts::new(100);
        for text in 0..50u32 {
            texts.add(&(0..30).map(|i| text * 30 + i).collect::<Vec<_>>());
            assert!(texts.tokens.len() <= 100, "{}", texts.tokens.len());
            assert_eq!(texts.following(&[text * 30, text * 30 + 1], 2, 2), [text * 30 + 2, text * 30 + 3]);
        }
        assert!(texts.following(&[0, 1], 2, 2).is_empty());
        texts.add(&[7; 1000]);
        assert_eq!(texts.following(&[7, 7, 7], 2, 9), [7; 9], "of a text that is too long the end is kept");
    }
}
