//! Prompt lookup decoding.

use mlxcel_core::{Result, TokenId, setters};

use super::runs::{MOST_LEAST, Runs};
use super::{DraftContext, DraftSource, Drafter};

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
    setters! {
        /// Sets the shortest n-gram that is looked up, from 1 to 4 tokens.
        with_least(tokens: usize) => least = tokens.clamp(1, MOST_LEAST);
    }
}

impl DraftSource for PromptLookup {
    fn drafter(&self, _: &DraftContext<'_>) -> Result<Box<dyn Drafter>> {
        Ok(Box::new(Lookup(Runs::new(self.least, MOST_LEAST))))
    }
}

struct Lookup(Runs);

impl Drafter for Lookup {
    fn draft(&mut self, tokens: &[TokenId], most: usize) -> Result<Vec<TokenId>> {
        self.0.add(tokens);
        let Some(start) = self.0.find(tokens, tokens) else { return Ok(Vec::new()) };
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
