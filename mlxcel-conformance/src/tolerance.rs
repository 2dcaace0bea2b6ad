//! How far two computations of the same thing may lie apart.

use mlxcel_core::Precision;

/// How far results may differ that are equal but for rounding: across batch sizes, chunkings and engines.
///
/// Rounding errors grow with what is rounded, so each bound is a part of the largest magnitude among the logits of the place: a model
/// whose logits reach 20 may be off by twenty times what one may be whose logits reach 1. Where an engine shows no logits, 16 is
/// taken for it, which is about what language models reach.
///
/// An engine that claims [`Capabilities::bitwise_batch_invariance`](mlxcel_core::Capabilities::bitwise_batch_invariance) is
/// given no margin within itself.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Tolerance {
    /// Where the logit of the most likely token leads the second by less than this, either may be chosen.
    pub margin: f32,
    /// The most by which the natural log probability of a chosen token may differ. Largest magnitudes below 1 count as 1, since a log
    /// probability is rounded by itself.
    pub logprob: f32,
    /// The most by which a logit may differ.
    pub logits: f32,
}

/// The bounds of a [`Tolerance`] at one place, in logits and log probabilities.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) margin: f32,
    pub(crate) logprob: f32,
}

/// The assumed largest logit if no logits are available.
const UNSEEN: f32 = 16.0;

impl Tolerance {
    /// No difference at all.
    pub const NONE: Self = Self { margin: 0.0, logprob: 0.0, logits: 0.0 };

    /// A tolerance of these three, each a part of the largest magnitude among the logits.
    pub fn new(margin: f32, logprob: f32, logits: f32) -> Self {
        Self { margin, logprob, logits }
    }

    /// Differences explained by the rounding of a precision: two to three times those measured between the engines of this
    /// repository, and less
    /// than what a missing term makes.
    ///
    /// Measured on the bundled model, whose logits reach 10 to 18, in parts of the largest: float32 sums differ by 1e-6 to 5e-6. With
    /// bfloat16 activations logits differ by up to 5e-3 and log probabilities by 2e-3 between engines, and by 7e-3 and 3e-3 from
    /// float32. With activations of eight bits logits differ from float32 by 6e-3 and log probabilities by 1.6e-3, after the most
    /// sensitive prompt by 2e-2 each. For comparison: the weights in four bits make 8e-2 of the logits, attention left out of one layer
    /// 3.5e-2.
    pub fn of(precision: Precision) -> Self {
        match precision {
            Precision::Exact => Self::new(2e-5, 5e-5, 1e-4),
            Precision::Native => Self::new(1e-2, 5e-3, 1e-2),
            _ => Self::new(2e-2, 3e-2, 3e-2),
        }
    }

    /// The bounds where the largest magnitude among the logits is this; none where no logits are shown.
    pub(crate) fn bounds(&self, largest: Option<f32>) -> Bounds {
        let largest = largest.unwrap_or(UNSEEN);
        Bounds { margin: self.margin * largest, logprob: self.logprob * largest.max(1.0) }
    }
}

/// The largest magnitude among logits, above zero.
pub(crate) fn largest(logits: &[f32]) -> f32 {
    logits.iter().fold(f32::MIN_POSITIVE, |largest, logit| largest.max(logit.abs()))
}
