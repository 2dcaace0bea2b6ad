//! Drafters for measurements.

use std::sync::Arc;

use mlxcel_session::{DraftContext, DraftSource, Drafter, Result, TokenId};

/// Replays a text with one in `wrong` tokens wrong, without a pattern.
#[derive(Clone, Debug)]
pub(super) struct Replay {
    /// The prompt and its continuation.
    text: Arc<Vec<TokenId>>,
    wrong: usize,
}

impl Replay {
    pub(super) fn new(prompt: &[TokenId], text: &[TokenId], wrong: usize) -> Self {
        Self { text: Arc::new([prompt, text].concat()), wrong }
    }
}

/// The bits of a number, mixed (the finalizer of SplitMix64).
fn mixed(number: usize) -> usize {
    let mut bits = (number as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((bits ^ (bits >> 31)) >> 8) as usize
}

impl DraftSource for Replay {
    fn drafter(&self, _: &DraftContext<'_>) -> Result<Box<dyn Drafter>> {
        Ok(Box::new(self.clone()))
    }
}

impl Drafter for Replay {
    fn draft(&mut self, tokens: &[TokenId], most: usize) -> Result<Vec<TokenId>> {
        let known = self.text.iter().enumerate().skip(tokens.len()).take(most);
        let is_wrong = |place| mixed(place).is_multiple_of(self.wrong);
        Ok(known.map(|(place, &token)| if is_wrong(place) { token ^ 1 } else { token }).collect())
    }
}

/// Drafts without any information.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unguessable;

impl DraftSource for Unguessable {
    fn drafter(&self, _: &DraftContext<'_>) -> Result<Box<dyn Drafter>> {
        Ok(Box::new(*self))
    }
}

impl Drafter for Unguessable {
    fn draft(&mut self, tokens: &[TokenId], most: usize) -> Result<Vec<TokenId>> {
        Ok((0..most).map(|index| (mixed(tokens.len() + index) % 1000) as TokenId).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replayed_text_has_the_requested_error_rate() {
        let text: Vec<TokenId> = (0..10_000).collect();
        for wrong in [1, 2, 5] {
            let mut replay = Replay::new(&[], &text, wrong);
            let guessed = replay.draft(&[], text.len()).unwrap();
            let right = guessed.iter().zip(&text).filter(|(guessed, token)| guessed == token).count();
            let expected = text.len() - text.len() / wrong;
            assert!(right.abs_diff(expected) < 200, "{right} of {expected}");
        }
    }
}
