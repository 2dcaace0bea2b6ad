//! Several residual streams: layers compute one and predict the others, or blocks mix all.

use super::{LayerInput, Linear, Norm, WeightId};

/// The residual streams of a network that has several.
#[derive(Clone, Debug, PartialEq)]
pub enum Streams {
    /// Those of a network with [`AltUp`] in each layer (Baykal et al., 2023, "Alternating Updates for Efficient
    /// Transformers").
    ///
    /// The first stream is the embedded tokens `x`, the others are projections of it, scaled to its magnitude:
    /// `p · √(mean(x²) / max(mean(p²), least))`. After the last layer the merges of the others are scaled to
    /// the magnitude of the first in the same way, and the mean of all goes on.
    Predicted {
        /// `hidden_size` to `hidden_size`, for each stream but the first.
        projections: Vec<Linear>,
        /// `hidden_size` to `hidden_size`, for each stream but the first.
        merges: Vec<Linear>,
        /// The least mean square that is divided by.
        least: f32,
    },
    /// Those of a network with a [`HyperConnection`] around each block: all begin as the embedded tokens, and
    /// after the last layer their sum, weighted by the first numbers of the mixer, goes on.
    Connected(StreamMixer),
}

/// Numbers for each token that say how streams are mixed: `sigmoid`s and others of `scale · mixes + base`,
/// where `mixes` is a projection of all streams beside each other, normalized together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamMixer {
    /// The number of streams.
    pub streams: usize,
    /// The norm of the streams beside each other.
    pub norm: Norm,
    /// `streams · hidden_size` to the mixes.
    pub projection: Linear,
    /// A factor for each kind of mixes.
    pub scale: WeightId,
    /// A summand for each mix.
    pub base: WeightId,
    /// Added to the weights of what a block reads.
    pub epsilon: f32,
}

/// How a block reads and writes several residual streams (Xie et al., 2026, "mHC: Manifold-Constrained
/// Hyper-Connections").
///
/// The mixer gives three kinds of mixes: `streams` numbers `a`, as many `b`, and `streams²` numbers `c`. The
/// block reads `Σ_j (sigmoid(a_j) + epsilon) · s_j`. With `y` its result, stream `k` becomes `2 ·
/// sigmoid(b_k) · y + Σ_j M[j, k] · s_j`. The rows of `M` are softmaxes of `c` plus epsilon, and then columns
/// and rows are divided by their sums plus epsilon in turn: columns this many times, and rows between
/// (Sinkhorn and Knopp, 1967).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HyperConnection {
    /// Gives the mixes.
    pub mixer: StreamMixer,
    /// How often columns are divided by their sums, at least once.
    pub iterations: usize,
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
