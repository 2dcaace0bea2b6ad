//! How far two computations of the same result may differ.

use mlxcel_core::Precision;

/// How far results that are equal except for rounding may differ: across batch sizes, chunkings and engines.
///
/// Rounding errors grow with the rounded values, so each bound is relative to the largest magnitude among the
/// logits of a position: logits that reach 20 may differ by twenty times as much as logits that reach 1. If
/// an engine returns no logits, 16 is assumed, which language models typically reach.
///
/// An engine that claims
/// [`Capabilities::bitwise_batch_invariance`](mlxcel_core::Capabilities::bitwise_batch_invariance) is allowed
/// no difference from itself.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Tolerance {
    /// If the most likely token's logit leads the second by less than this, either may be chosen.
    pub margin: f32,
    /// The most by which the natural log probability of a chosen token may differ. Largest magnitudes below
    /// 1 count as 1, since a log probability is itself rounded.
    pub logprob: f32,
    /// The most by which a logit may differ.
    pub logits: f32,
}

/// The bounds of a [`Tolerance`] at one position, in logits and log probabilities.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) margin: f32,
    pub(crate) logprob: f32,
}

/// The assumed largest logit if no logits are available.
const UNSEEN: f32 = 16.0;

impl Tolerance {
    /// No difference.
    pub const NONE: Self = Self { margin: 0.0, logprob: 0.0, logits: 0.0 };

    /// For float32 results of small models with random weights, experts among them, which turn small differences
    /// into larger ones.
    pub const RANDOM_WEIGHTS: Self = Self { margin: 1e-3, logprob: 3e-3, logits: 1e-3 };

    /// A tolerance with these three bounds, each relative to the largest magnitude among the logits.
    pub fn new(margin: f32, logprob: f32, logits: f32) -> Self {
        Self { margin, logprob, logits }
    }

    /// Differences explained by the rounding of a precision: two to three times those measured between the
    /// engines of this repository, and less than those of a missing term.
    ///
    /// Measured on the bundled model, whose logits reach 10 to 18, relative to the largest: float32 sums
    /// differ by 1e-6 to 5e-6. With bfloat16 activations logits differ by up to 5e-3 and log
    /// probabilities by 2e-3 between engines, and by 7e-3 and 3e-3 from float32. With 8-bit activations
    /// logits differ from float32 by 6e-3 and log probabilities by 1.6e-3, after the most sensitive
    /// prompt by 2e-2 each. For comparison: 4-bit weights change logits by 8e-2, omitting attention in one
    /// layer by 3.5e-2.
    pub fn of(precision: Precision) -> Self {
        match precision {
            Precision::Exact => Self::new(2e-5, 5e-5, 1e-4),
            Precision::Native => Self::new(1e-2, 5e-3, 1e-2),
            _ => Self::new(2e-2, 3e-2, 3e-2),
        }
    }

    /// The bounds for this largest magnitude among the logits; none if no logits are returned.
    pub(crate) fn bounds(&self, largest: Option<f32>) -> Bounds {
        let largest = largest.unwrap_or(UNSEEN);
        Bounds { margin: self.margin * largest, logprob: self.logprob * largest.max(1.0) }
    }
}

/// The largest magnitude among logits, above zero.
pub(crate) fn largest(logits: &[f32]) -> f32 {
    logits.iter().fold(f32::MIN_POSITIVE, |largest, logit| largest.max(logit.abs()))
}
