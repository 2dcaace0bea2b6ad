//! Token masks.

use crate::token::TokenId;

/// The set of allowed tokens, for constrained decoding.
///
/// Honoured by engines that claim [`Capabilities::token_masks`](crate::Capabilities::token_masks), and by the
/// host sampler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u64>,
    size: usize,
}

impl TokenMask {
    /// A mask over a vocabulary of `size` that allows no token.
    pub fn none(size: usize) -> Self {
        Self { words: vec![0; size.div_ceil(64)], size }
    }

    /// A mask over a vocabulary of `size` that allows exactly `tokens`; tokens outside the vocabulary are
    /// ignored.
    pub fn allowing(size: usize, tokens: impl IntoIterator<Item = TokenId>) -> Self {
        let mut mask = Self::none(size);
        tokens.into_iter().for_each(|token| mask.allow(token));
        mask
    }

    /// A mask over a vocabulary of `size` from a bit set: token `t` is allowed if bit `t % 64` of word `t /
    /// 64` is set. Missing words count as zero, and bits outside the vocabulary are ignored.
    pub fn from_words(size: usize, mut words: Vec<u64>) -> Self {
        words.resize(size.div_ceil(64), 0);
        if let (Some(last), used @ 1..) = (words.last_mut(), size % 64) {
            *last &= (1 << used) - 1;
        }
        Self { words, size }
    }

    /// Allows `token`; ignored if it is outside the vocabulary.
    pub fn allow(&mut self, token: TokenId) {
        if (token as usize) < self.size {
            self.words[token as usize / 64] |= 1 << (token % 64);
        }
    }

    /// Whether `token` is allowed.
    pub fn allows(&self, token: TokenId) -> bool {
        (token as usize) < self.size && self.words[token as usize / 64] >> (token % 64) & 1 == 1
    }

    /// The size of the vocabulary.
    pub fn vocabulary_size(&self) -> usize {
        self.size
    }

    /// The number of allowed tokens.
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether no token is allowed.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_allows_its_tokens_and_nothing_beyond_the_vocabulary() {
        let mask = TokenMask::allowing(70, [0, 69, 70, 1000]);
        let allowed: Vec<_> = (0..2000).filter(|&token| mask.allows(token)).collect();
        assert_eq!(allowed, [0, 69]);
        assert_eq!(TokenMask::from_words(70, vec![1, 1 << 5 | 1 << 6, 7]), mask);
        assert_eq!(TokenMask::from_words(128, vec![1]).count(), 1);
        let full = TokenMask::allowing(64, 0..64);
        assert!(full.count() == 64 && !full.allows(64));
        assert!(TokenMask::none(70).is_empty() && !mask.is_empty() && mask.count() == 2);
    }
}
