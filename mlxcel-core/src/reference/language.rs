//! The model: from the tokens of a sequence to logits, with a KV cache.

use crate::token::TokenId;

/// The increment of SplitMix64: 2⁶⁴ over the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014, doi:10.1145/2660193.2660195): each bit of the
/// result depends on every bit of `value`.
pub(super) fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// What the cache keeps of one position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The token that stands there.
    pub(super) token: TokenId,
    /// What later positions see of it; depends on the token and the position.
    pub(super) value: u64,
}

impl Entry {
    /// The bytes of one entry, in memory as in a snapshot.
    pub(super) const BYTES: usize = 12;

    pub(super) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.token.to_le_bytes());
        bytes[4..].copy_from_slice(&self.value.to_le_bytes());
        bytes
    }

    /// Reads what [`to_bytes`](Self::to_bytes) gave; none for another number of bytes.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (token, value) = bytes.split_first_chunk()?;
        let value = value.try_into().ok()?;
        Some(Self { token: TokenId::from_le_bytes(*token), value: u64::from_le_bytes(value) })
    }
}

/// The weights: two numbers for each token of the vocabulary.
#[derive(Debug)]
pub(super) struct Language {
    embedding: Vec<u64>,
    output: Vec<u64>,
    seed: u64,
}

impl Language {
    /// The elements of a hidden state.
    pub(super) const HIDDEN: usize = 8;

    pub(super) fn new(vocabulary: usize, seed: u64) -> Self {
        let mut state = mix(seed);
        let mut table = || {
            (0..vocabulary)
                .map(|_| {
                    state = state.wrapping_add(GOLDEN);
                    mix(state)
                })
                .collect()
        };
        Self { embedding: table(), output: table(), seed }
    }

    pub(super) fn vocabulary(&self) -> usize {
        self.embedding.len()
    }

    /// The bytes of the weights.
    pub(super) fn bytes(&self) -> u64 {
        16 * self.embedding.len() as u64
    }

    /// Equal only for the same weights and stop tokens.
    pub(super) fn fingerprint(&self, stop_tokens: &[TokenId]) -> String {
        let stops =
            stop_tokens.iter().fold(0, |sum, &token| mix(sum ^ u64::from(token).wrapping_add(GOLDEN)));
        format!("reference-{}-{:016x}-{stops:016x}", self.vocabulary(), self.seed)
    }

    /// What the cache keeps of `token` at `position`, with the `salt` of an adapter, which is 0 without one;
    /// `token` is within the vocabulary.
    pub(super) fn entry(&self, token: TokenId, position: usize, salt: u64) -> Entry {
        let value = mix(self.embedding[token as usize] ^ (position as u64).wrapping_mul(GOLDEN) ^ salt);
        Entry { token, value }
    }

    /// What the last entry of `cache` has seen.
    ///
    /// Each entry takes part by its value and its distance from the end, as in attention with relative
    /// positions.
    pub(super) fn attend(cache: &[Entry]) -> u64 {
        (0u64..)
            .zip(cache.iter().rev())
            .map(|(distance, entry)| mix(entry.value.wrapping_add(distance.wrapping_mul(GOLDEN))))
            .fold(0, u64::wrapping_add)
    }

    /// The state of a recurrence after another entry.
    pub(super) fn next_state(state: u64, entry: Entry) -> u64 {
        mix(state.wrapping_mul(GOLDEN) ^ entry.value)
    }

    /// The logits that a position gives which has seen this: from -4 to 4, exact in `f32`.
    pub(super) fn logits_of(&self, attended: u64) -> Vec<f32> {
        self.output.iter().map(|&output| project(attended, output)).collect()
    }

    /// The hidden state of a position that has seen this: as a logit each.
    pub(super) fn hidden_of(attended: u64) -> Vec<f32> {
        (0..Self::HIDDEN as u64).map(|index| project(attended, mix(index.wrapping_add(GOLDEN)))).collect()
    }
}

/// A number from -4 to 4 of what a position has seen, by a weight.
fn project(attended: u64, weight: u64) -> f32 {
    // 24 bits: what an f32 holds exactly.
    let bits = mix(attended ^ weight) >> 40;
    bits as f32 * (8.0 / (1u32 << 24) as f32) - 4.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits(language: &Language, tokens: &[TokenId]) -> Vec<f32> {
        let cache: Vec<_> = (0..).zip(tokens).map(|(n, &token)| language.entry(token, n, 0)).collect();
        language.logits_of(Language::attend(&cache))
    }

    #[test]
    fn logits_depend_on_every_token_and_position() {
        let language = Language::new(64, 0);
        let base = logits(&language, &[1, 2, 3, 4]);
        for other in [&[5, 2, 3, 4][..], &[1, 2, 3], &[2, 1, 3, 4], &[1, 2, 4, 3], &[1, 1, 2, 3, 4]] {
            assert_ne!(logits(&language, other), base, "{other:?}");
        }
        assert_ne!(logits(&Language::new(64, 1), &[1, 2, 3, 4]), base);
        let shifted: Vec<_> = (1..).zip([1, 2, 3, 4]).map(|(n, token)| language.entry(token, n, 0)).collect();
        assert_ne!(language.logits_of(Language::attend(&shifted)), base);
    }

    #[test]
    fn logits_are_the_same_on_every_machine() {
        // Recorded: a change here changes what every example and test says.
        let found = logits(&Language::new(64, 0), &[1, 2, 3]);
        assert_eq!(found[..4], [-3.495759, 1.3484311, 2.0705967, 1.4968739]);
        assert!(found.iter().all(|logit| (-4.0..4.0).contains(logit)));
    }
}
