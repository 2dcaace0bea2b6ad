//! Finds where the last tokens of a text occurred before.

use std::collections::HashMap;
use std::iter::successors;

use mlxcel_core::TokenId;

/// Between texts: no token.
pub(super) const END: TokenId = TokenId::MAX;

/// The most tokens of the shortest run that is found.
pub(super) const MOST_LEAST: usize = 4;

/// How many occurrences of the shortest run are compared, the last ones.
const MOST_COMPARED: usize = 1024;

/// The places of a growing list of tokens, by the tokens before them.
#[derive(Clone, Debug)]
pub(super) struct Runs {
    /// The length of the shortest run that is found, and of the longest that is compared.
    least: usize,
    most: usize,
    /// The last place behind these `least` tokens, which follow zeros.
    last: HashMap<[TokenId; MOST_LEAST], usize>,
    /// For each place the one before it behind the same tokens; 0 for none.
    before: Vec<usize>,
}

impl Runs {
    /// Finds runs of at least `least` tokens, up to [`MOST_LEAST`], and tells them apart by at most `most`.
    pub(super) fn new(least: usize, most: usize) -> Self {
        Self { least: least.clamp(1, MOST_LEAST), most, last: HashMap::new(), before: Vec::new() }
    }

    /// Adds the places of `tokens`, which begin with those of the last call.
    pub(super) fn add(&mut self, tokens: &[TokenId]) {
        for place in self.before.len()..=tokens.len() {
            let before = self.key(&tokens[..place]).and_then(|key| self.last.insert(key, place));
            self.before.push(before.unwrap_or(0));
        }
    }

    /// The place in `tokens`, which were added, where what followed the last tokens of `text` begins: of the
    /// longest run, and of its occurrences the last.
    pub(super) fn find(&self, tokens: &[TokenId], text: &[TokenId]) -> Option<usize> {
        let last = *self.last.get(&self.key(text)?)?;
        let earlier = successors(Some(last), |&place| Some(self.before[place]).filter(|&place| place > 0));
        let (mut longest, mut found) = (0, None);
        for place in earlier.take(MOST_COMPARED) {
            let pairs = tokens[..place].iter().rev().zip(text.iter().rev());
            let length = pairs.take(self.most).take_while(|(a, b)| a == b).count();
            if length > longest && tokens.get(place).is_some_and(|&next| next != END) {
                (longest, found) = (length, Some(place));
            }
            if longest == self.most {
                break;
            }
        }
        found
    }

    fn key(&self, tokens: &[TokenId]) -> Option<[TokenId; MOST_LEAST]> {
        let start = tokens.len().checked_sub(self.least)?;
        let mut key = [0; MOST_LEAST];
        key[MOST_LEAST - self.least..].copy_from_slice(&tokens[start..]);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_the_longest_runs_is_found_as_by_a_plain_search() {
        let mut state = 1u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % below) as TokenId
        };
        let (mut runs, mut tokens) = (Runs::new(2, 6), Vec::new());
        for _ in 0..400 {
            let length = 5 + random(40);
            tokens.extend((0..length).map(|_| random(4)).chain([END]));
            runs.add(&tokens);
            let text: Vec<_> = (0..random(12)).map(|_| random(4)).collect();
            let length = |place: usize| {
                tokens[..place]
                    .iter()
                    .rev()
                    .zip(text.iter().rev())
                    .take(6)
                    .take_while(|(a, b)| a == b)
                    .count()
            };
            let places = (2..tokens.len()).filter(|&place| tokens[place] != END && length(place) >= 2);
            let expected = places.max_by_key(|&place| length(place));
            assert_eq!(runs.find(&tokens, &text), expected, "{text:?}");
        }
    }

    #[test]
    fn the_last_occurrences_alone_are_compared() {
        for (ones, found) in [(MOST_COMPARED - 1, 2), (MOST_COMPARED, MOST_COMPARED + 1)] {
            let tokens = [vec![7, 1], vec![1; ones]].concat();
            let mut runs = Runs::new(1, 4);
            runs.add(&tokens);
            assert_eq!(runs.find(&tokens, &[7, 1]), Some(found));
        }
    }
}
