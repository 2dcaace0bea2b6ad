//! Projections, norms and activations, of which mixers and MLPs consist.

use std::fmt;

use super::WeightId;

/// A linear layer: `x · weightᵀ + bias`, times `scale` if its user has one.
///
/// For [experts](super::Experts) the weight is `[experts, outputs, inputs]` and the bias `[experts,
/// outputs]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Linear {
    /// `[outputs, inputs]`.
    pub weight: WeightId,
    /// `[outputs]`, if any.
    pub bias: Option<WeightId>,
    /// The number of inputs.
    pub inputs: usize,
    /// The number of outputs.
    pub outputs: usize,
}

/// A linear layer, or two through a narrow middle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Projection {
    /// One.
    Direct(Linear),
    /// Two, of which the second reads what the first gives.
    Narrow {
        /// To the middle.
        down: Linear,
        /// The nonlinearity between, if any.
        activation: Option<Activation>,
        /// From the middle.
        up: Linear,
    },
}

impl Projection {
    /// Its linear layers, in order.
    pub fn linears(&self) -> impl Iterator<Item = Linear> + use<> {
        let (first, second) = match *self {
            Self::Direct(linear) => (linear, None),
            Self::Narrow { down, activation: _, up } => (down, Some(up)),
        };
        std::iter::once(first).chain(second)
    }
}

impl From<Linear> for Projection {
    fn from(linear: Linear) -> Self {
        Self::Direct(linear)
    }
}

/// A linear layer per head: `y[h] = x[h] · weight[h]ᵀ`, or `x[h] · weight[h]` if
/// [`transposed`](Self::transposed).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadLinear {
    /// `[heads, rows, columns]`.
    pub weight: WeightId,
    /// Whether the rows of the matrices are inputs and the columns outputs.
    pub transposed: bool,
    /// The number of heads.
    pub heads: usize,
    /// The inputs of each head.
    pub inputs: usize,
    /// The outputs of each head.
    pub outputs: usize,
}

/// A norm over the last dimension, in float32: `(x − mean) / √(spread + epsilon) · (offset + weight) + bias`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// The kind, which defines mean and spread.
    pub kind: NormKind,
    /// One factor per element: `[width]`, or `[heads, width]` for factors per head. `None`: all are one.
    pub weight: Option<WeightId>,
    /// Added at the end, of the weight's shape.
    pub bias: Option<WeightId>,
    /// Added to the spread.
    pub epsilon: f32,
    /// Added to every factor: 1 if the checkpoint stores factors minus one (Gemma), else 0.
    pub offset: f32,
    /// The length of the last dimension.
    pub width: usize,
}

/// The mean and spread of a [`Norm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NormKind {
    /// No mean, and the mean square as spread (Zhang and Sennrich, 2019, "Root Mean Square Layer
    /// Normalization").
    Rms,
    /// The mean, and the variance as spread (Ba et al., 2016, "Layer Normalization").
    Layer,
}

/// An elementwise activation function.
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
    /// `ln(1 + eˣ)`; `x` above 20, as in PyTorch.
    Softplus,
}

/// The activation xIELU (Huang and Schlag, 2024, "Deriving Activation Functions Using Integration"): with `p
/// = softplus(positive)` and `n = beta + softplus(negative)`, it is `p·x² + beta·x` above zero, and else
/// `n·(exp(min(x, epsilon)) − 1 − x) + beta·x`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Xielu {
    /// `[1]`.
    pub positive: WeightId,
    /// `[1]`.
    pub negative: WeightId,
    /// `[1]`.
    pub beta: WeightId,
    /// `[1]`: a negative number.
    pub epsilon: WeightId,
}

/// How an MLP combines gate and up projection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gating {
    /// `activation(gate) · up` (Shazeer, 2020, "GLU Variants Improve Transformer").
    Activated(Activation),
    /// `activation(gate)`: there is no other projection, and `up` is the same as `gate`.
    Ungated(Activation),
    /// `activation(scale · gate) · up` (Falcon H1).
    Scaled {
        /// The nonlinearity.
        activation: Activation,
        /// The factor of the gate.
        scale: f32,
    },
    /// `activation(max(gate − mean − deviations · spread, 0)) · up`, with the mean and the standard deviation
    /// of the gate's elements, so that a known part of normally distributed ones is left (Gemma 3n).
    Sparse {
        /// The nonlinearity.
        activation: Activation,
        /// How many standard deviations above the mean an element must be.
        deviations: f32,
    },
    /// `min(activation(gate), limit) · clamp(up, −limit, limit)` (Step 3.5).
    Limited {
        /// The nonlinearity.
        activation: Activation,
        /// The bound, a positive number.
        limit: f32,
    },
    /// Clamped SwiGLU: with `g = min(gate, limit)` and `u = clamp(up, −limit, limit)`, it is `(u + offset) ·
    /// g · sigmoid(alpha · g)` (gpt-oss, DeepSeek-V4).
    ClampedSwiglu {
        /// What the gate is multiplied with inside of the sigmoid.
        alpha: f32,
        /// The bound.
        limit: f32,
        /// Added to the up projection.
        offset: f32,
    },
}

impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Silu => "silu",
            Self::Gelu => "gelu",
            Self::GeluTanh => "gelu (tanh)",
            Self::Relu => "relu",
            Self::ReluSquared => "relu²",
            Self::Sigmoid => "sigmoid",
            Self::Tanh => "tanh",
            Self::Softplus => "softplus",
        })
    }
}

impl fmt::Display for Gating {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Activated(activation) => activation.fmt(f),
            Self::Ungated(activation) => write!(f, "{activation} without"),
            Self::Scaled { activation, scale } => write!(f, "{activation} of {scale} times the"),
            Self::Sparse { activation, deviations } => {
                write!(f, "{activation} of what exceeds {deviations} deviations of the")
            }
            Self::Limited { activation, limit } => write!(f, "{activation} up to {limit}"),
            Self::ClampedSwiglu { alpha, limit, offset } => {
                write!(f, "clamped swiglu ({alpha}, {limit})")?;
                if *offset == 1.0 { Ok(()) } else { write!(f, " plus {offset}") }
            }
        }
    }
}
