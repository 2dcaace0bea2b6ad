//! Embeddings of tokens for each layer, which layers read beside the residual stream.

use super::{Activation, Linear, Norm, WeightId};

/// Embeddings of tokens for each layer (Gemma 3n). The input of layer `i` is `sum_scale · (scale ·
/// table[token, i] + norm(projection_scale · projection(x)[i]))`, where `x` are the embedded tokens that
/// enter the first layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerEmbeddings {
    /// `[rows, layers · width]`. Tokens beyond the rows read the first.
    pub weight: WeightId,
    /// The number of rows.
    pub rows: usize,
    /// The number of layers.
    pub layers: usize,
    /// The width of a layer's input.
    pub width: usize,
    /// A factor of the rows.
    pub scale: f32,
    /// `hidden_size` to `layers · width`.
    pub projection: Linear,
    /// A factor of what the projection gives.
    pub projection_scale: f32,
    /// The norm of each layer's part of the projection.
    pub norm: Norm,
    /// A factor of the sum.
    pub sum_scale: f32,
}

/// `projection(activation(gate(x)) · input)`, where `input` is a layer's part of [`LayerEmbeddings`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerInput {
    /// Which part is read.
    pub layer: usize,
    /// The nonlinearity of the gate.
    pub activation: Activation,
    /// `hidden_size` to the width of the input.
    pub gate: Linear,
    /// The width of the input to `hidden_size`.
    pub projection: Linear,
}
