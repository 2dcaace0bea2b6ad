//! The numbers that draws depend on.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Uniform numbers as a function of seed and position: the generator keeps nothing from draw to draw.
#[derive(Clone, Debug)]
pub(super) struct Random(ChaCha8Rng);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// The `number`-th number in [0, 1) of `position`: of stream `position` of the ChaCha8 generator seeded
    /// with the seed.
    pub(super) fn uniform(&self, position: usize, number: u16) -> f64 {
        let mut rng = self.0.clone();
        rng.set_stream(position as u64);
        // Each takes two words of 32 bits.
        rng.set_word_pos(u128::from(number) * 2);
        // The 53 bits that a double holds.
        (rng.next_u64() >> 11) as f64 * (-53f64).exp2()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_position_are_those_of_its_stream_in_order() {
        let random = Random::new(42);
        for position in [0, 7] {
            let mut stream = ChaCha8Rng::seed_from_u64(42);
            stream.set_stream(position as u64);
            for number in 0..40 {
                let expected = (stream.next_u64() >> 11) as f64 / 2f64.powi(53);
                assert_eq!(random.uniform(position, number), expected);
            }
        }
    }
}
