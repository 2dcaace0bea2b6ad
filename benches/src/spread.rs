//! Repeated measurements: their random order and inputs, and their statistics.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;

/// The numbers below `count` in random order.
pub(crate) fn shuffled(count: usize, random: &mut ChaCha8Rng) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_cached_key(|_| random.next_u64());
    order
}

pub(crate) fn random_tokens(vocabulary: usize, count: usize, random: &mut ChaCha8Rng) -> Vec<u32> {
    (0..count).map(|_| random.next_u32() % vocabulary as u32).collect()
}

/// Median, minimum and maximum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Spread {
    pub(crate) fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        let middle = sorted.len() / 2;
        let median = match sorted.len() {
            0 => f64::NAN,
            count if count % 2 == 0 => (at(middle - 1) + at(middle)) / 2.0,
            _ => at(middle),
        };
        Self { median, least: at(0), most: at(sorted.len().wrapping_sub(1)) }
    }

    pub(crate) fn scaled(&self, factor: f64) -> Self {
        Self { median: self.median * factor, least: self.least * factor, most: self.most * factor }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.median.is_nan() {
            return f.pad("-");
        }
        // Two digits for small values.
        let digits = if self.median < 10.0 { 2 } else { 1 };
        f.pad(&format!("{:.digits$} ({:.digits$} to {:.digits$})", self.median, self.least, self.most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_is_between_two() {
        assert_eq!(Spread::of(&[4.0, 1.0, 3.0, 2.0]).median, 2.5);
        assert_eq!(Spread::of(&[]).to_string(), "-");
        assert_eq!(Spread::of(&[12.0]).scaled(0.5).to_string(), "6.00 (6.00 to 6.00)");
    }
}
