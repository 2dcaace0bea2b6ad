//! Prompt lookup decoding.

use std::collections::HashMap;

use mlxcel_core::{Result, TokenId};

use super::{DraftContext, DraftSource, Drafter};

/// The longest run of tokens that is looked up.
const LONGEST: usize = 4;

/// Prompt lookup decoding: drafts what followed the last tokens when they occurred before in the prompt or
/// the text. Useful for texts that repeat their prompt, as in summaries, corrections and code edits.
///
/// It matches the longest n-gram of up to 4 tokens, and of its occurrences the last.
#[derive(Clone, Debug)]
pub struct PromptLookup {
    least: usize,
}

impl Default for PromptLookup {
    /// Runs of at least 2 tokens.
    fn default() -> Self {
        Self { least: 2 }
    }
}

impl PromptLookup {
    /// Sets the shortest n-gram that is looked up, from 1 to 4 tokens.
    #[must_use]
    pub fn with_least(mut self, tokens: usize) -> Self {
        self.least = tokens.clamp(1, LONGEST);
        self
    }
}

impl DraftSource for PromptLookup {
    fn drafter(&self, _: &DraftContext<'_>) -> Result<Box<dyn Drafter>> {
        Ok(Box::new(Lookup { least: self.least, seen: 0, followers: HashMap::new() }))
    }
}

struct Lookup {
    least: usize,
    /// How many tokens are in the index, as ends of runs.
    seen: usize,
    /// Of each run, behind zeros, and its length: where what followed it last begins.
    followers: HashMap<([TokenId; LONGEST], usize), usize>,
}

/// The last `length` of `tokens` as a key.
fn run(tokens: &[TokenId], length: usize) -> Option<([TokenId; LONGEST], usize)> {
    let start = tokens.len().checked_sub(length)?;
    let mut key = [0; LONGEST];
    key[LONGEST - length..].copy_from_slice(&tokens[start..]);
    Some((key, length))
}

impl Drafter for Lookup {
    fn draft(&mut self, tokens: &[TokenId], most: usize) -> Result<Vec<TokenId>> {
        // What ends the text has no follower yet.
        while self.seen + 1 < tokens.len() {
            self.seen += 1;
            for length in self.least..=LONGEST {
                if let Some(key) = run(&tokens[..self.seen], length) {
                    self.followers.insert(key, self.seen);
                }
            }
        }
        let found = (self.least..=LONGEST).rev().find_map(|length| self.followers.get(&run(tokens, length)?));
        let Some(&start) = found else { return Ok(Vec::new()) };
        // A text that repeats itself continues repeating.
        let period = tokens.len() - start;
        Ok((0..most).map(|index| tokens[start + index % period]).collect())
    }
}

#[cfg(test)]
mod tests {
    use mlxcel_core::SamplingParams;

    use super::*;

    fn drafter() -> Box<dyn Drafter> {
        let sampling = SamplingParams::greedy();
        PromptLookup::default().drafter(&DraftContext::new(99, &sampling)).unwrap()
    }

    #[test]
    fn the_draft_follows_the_longest_latest_match() {
        let mut drafter = drafter();
        let text = [1, 2, 3, 4, 9, 2, 3, 5, 6, 7];
        assert!(drafter.draft(&text, 3).unwrap().is_empty());
        let mut longer = text.to_vec();
        longer.extend([2, 3]);
        assert_eq!(drafter.draft(&longer, 3).unwrap(), [5, 6, 7], "of two occurrences the last");
        longer.extend([4, 9, 1, 2, 3]);
        assert_eq!(drafter.draft(&longer, 2).unwrap(), [4, 9], "the longer run");
    }

    #[test]
    fn a_repeating_text_is_drafted_beyond_its_end() {
        assert_eq!(drafter().draft(&[1, 7, 8, 7, 8], 5).unwrap(), [7, 8, 7, 8, 7]);
        assert_eq!(drafter().draft(&[5; 6], 4).unwrap(), [5; 4]);
    }
}
