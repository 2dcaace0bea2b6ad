//! How far two computations of the same thing may lie apart.

use mlxcel_core::Precision;

/// How far results may differ that are equal but for rounding: across batch sizes, chunkings and engines.
///
/// An engine that claims [`Capabilities::bitwise_batch_invariance`](mlxcel_core::Capabilities::bitwise_batch_invariance) is
/// given no margin within itself.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Tolerance {
    /// Where the most likely token leads the second by less than this (in logits, that is in natural log probability), either
    /// may be chosen.
    pub margin: f32,
    /// The most by which the log probability of a token may differ.
    pub logprob: f32,
    /// The most by which a logit may differ, relative to the largest magnitude among the logits.
    pub logits: f32,
}

impl Tolerance {
    /// No difference at all.
    pub const NONE: Self = Self { margin: 0.0, logprob: 0.0, logits: 0.0 };

    /// A tolerance of these three.
    pub fn new(margin: f32, logprob: f32, logits: f32) -> Self {
        Self { margin, logprob, logits }
    }

    /// What the rounding of a precision explains.
    ///
    /// float32 sums differ by some units of 1e-6 relative to the largest logit, and log probabilities by 1e-5; the bounds of
    /// `Exact` stand well above. With bfloat16 activations logits differ by up to 4e-3, and over texts that a model was not made
    /// for log probabilities by up to 0.16 between two sound implementations (measured on the bundled model against
    /// transformers). `Fast` has room for activations of eight bits.
    pub fn of(precision: Precision) -> Self {
        match precision {
            Precision::Exact => Self::new(1e-4, 1e-3, 1e-4),
            Precision::Native => Self::new(0.25, 0.25, 1e-2),
            _ => Self::new(1.0, 1.0, 5e-2),
        }
    }
}
