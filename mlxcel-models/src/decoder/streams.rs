//! Several residual streams, of which layers compute one and predict the others.

use super::{LayerInput, Linear, Norm, WeightId};

/// The residual streams of a network with [`AltUp`] in each layer (Baykal et al., 2023, "Alternating Updates
/// for Efficient Transformers").
///
/// The first stream is the embedded tokens `x`, the others are [`projections`](Self::projections) of it,
/// scaled to its magnitude: `p · √(mean(x²) / max(mean(p²), least))`. After the last layer the
/// [`merges`](Self::merges) of the others are scaled to the magnitude of the first in the same way, and the
/// mean of all goes on.
#[derive(Clone, Debug, PartialEq)]
pub struct Streams {
    /// `hidden_size` to `hidden_size`, for each stream but the first.
    pub projections: Vec<Linear>,
    /// `hidden_size` to `hidden_size`, for each stream but the first.
    pub merges: Vec<Linear>,
    /// The least mean square that is divided by.
    pub least: f32,
}

/// How a layer updates all streams, `n`, by computing its blocks on one (Gemma 3n).
///
/// With `m(x) = tanh(router(input_scale · norm(x)))`, stream `j` becomes `s_j + Σ_i prediction(m(s_active))[j
/// · n + i] · s_i`. The blocks turn the active one into `y`, and each stream `j` gets `(1 +
/// correction(m(y))[j]) · (y − s_active)` in addition. Then every stream but the first gets
/// `input_norm(input(output_scale · s_active))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AltUp {
    /// The stream that the blocks read.
    pub active: usize,
    /// The norm of what the router reads.
    pub norm: Norm,
    /// A factor of that.
    pub input_scale: f32,
    /// `hidden_size` to `n`.
    pub router: Linear,
    /// `n` to `n²`.
    pub prediction: Linear,
    /// `n` to `n`.
    pub correction: Linear,
    /// `[hidden_size]`: factors of what the layer's input is gated with, if any.
    pub output_scale: Option<WeightId>,
    /// The layer's part of the embeddings for each layer.
    pub input: LayerInput,
    /// The norm of what it gives.
    pub input_norm: Norm,
}

/// A residual of low rank beside an operation (Gemma 3n's learned augmented residual layer): with `r` what
/// the operation reads, the stream becomes `scale · (x + operation + r + norm(right(left(r))))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Laurel {
    /// `hidden_size` to the rank.
    pub left: Linear,
    /// The rank to `hidden_size`.
    pub right: Linear,
    /// The norm of what they give.
    pub norm: Norm,
    /// A factor of the sum.
    pub scale: f32,
}
