//! The parts that mixers and MLPs are made of: projections, norms, nonlinearities.

use super::WeightId;

/// A projection: `x · weightᵀ + bias`, times `scale` where one is given to its user.
///
/// Of [experts](super::Experts) the weight is `[experts, outputs, inputs]` and the bias `[experts, outputs]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Linear {
    /// `[outputs, inputs]`.
    pub weight: WeightId,
    /// `[outputs]`, where there is one.
    pub bias: Option<WeightId>,
    /// The number of inputs.
    pub inputs: usize,
    /// The number of outputs.
    pub outputs: usize,
}

/// A projection of each head by a matrix of its own: `y[h] = x[h] · weight[h]ᵀ`, or `x[h] · weight[h]` where
/// [`transposed`](Self::transposed).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadLinear {
    /// `[heads, rows, columns]`.
    pub weight: WeightId,
    /// Whether inputs are the rows of the matrix and outputs its columns.
    pub transposed: bool,
    /// The number of heads.
    pub heads: usize,
    /// The inputs of each head.
    pub inputs: usize,
    /// The outputs of each head.
    pub outputs: usize,
}

/// A normalisation over the last dimension, in single precision:
/// `(x − mean) / √(spread + epsilon) · (offset + weight) + bias`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// Which mean and spread.
    pub kind: NormKind,
    /// One factor an element: `[width]`, or `[heads, width]` where each head has factors of its own; none: all are one.
    pub weight: Option<WeightId>,
    /// What is added at the end, of the weight's shape.
    pub bias: Option<WeightId>,
    /// What is added to the spread.
    pub epsilon: f32,
    /// What is added to every factor: 1 where the checkpoint stores factors less one (Gemma), else 0.
    pub offset: f32,
    /// The length of the last dimension.
    pub width: usize,
}

/// What a [`Norm`] subtracts and divides by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NormKind {
    /// No mean, and the mean square as spread (Zhang and Sennrich, 2019, "Root Mean Square Layer Normalization").
    Rms,
    /// The mean, and the variance as spread (Ba et al., 2016, "Layer Normalization").
    Layer,
}

/// A nonlinearity, applied to each element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x · sigmoid(x)`, also called swish.
    Silu,
    /// `x · Φ(x)` with the error function: `x/2 · (1 + erf(x/√2))`.
    Gelu,
    /// The approximation `x/2 · (1 + tanh(√(2/π) · (x + 0.044715·x³)))` (Hendrycks and Gimpel, 2016).
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)²` (So et al., 2021, "Primer").
    ReluSquared,
    /// `1 / (1 + e⁻ˣ)`.
    Sigmoid,
    /// `tanh(x)`.
    Tanh,
    /// `ln(1 + eˣ)`; above 20 it is `x`, as in PyTorch.
    Softplus,
}

/// How the gate of an MLP and its up projection become one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gating {
    /// `activation(gate) · up` (Shazeer, 2020, "GLU Variants Improve Transformer").
    Activated(Activation),
    /// gpt-oss's clamped SwiGLU: with `g = min(gate, limit)` and `u = clamp(up, −limit, limit)`, it is
    /// `(u + 1) · g · sigmoid(alpha · g)`.
    ClampedSwiglu {
        /// What the gate is multiplied with inside of the sigmoid.
        alpha: f32,
        /// The bound.
        limit: f32,
    },
}
