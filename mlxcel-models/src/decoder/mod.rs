//! The description of a decoder network that every family maps to and every engine reads.

mod display;
mod weight;

use std::collections::HashSet;

use crate::element::ElementType;
use crate::rope::Rope;

pub use weight::{RowSlice, WeightRef};

/// A decoder-only transformer, described as data.
///
/// A token's row of [`embedding`](Self::embedding) goes through [`layers`](Self::layers), then through
/// [`norm`](Self::norm), and [`head`](Self::head) turns it into a logit for every token of the vocabulary. It holds
/// names and shapes of weights and no bytes of them; those come from
/// [`Checkpoint::weight`](crate::Checkpoint::weight). It prints as a summary with equal layers grouped.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Decoder {
    /// The architecture's name in `config.json`, such as `llama`.
    pub model_type: String,
    /// The number of token ids, and of logits.
    pub vocabulary_size: usize,
    /// The width of the stream that the layers read and add to.
    pub hidden_size: usize,
    /// The most positions that a sequence may have.
    pub context_length: usize,
    /// The type in which the checkpoint's authors run activations.
    pub element_type: ElementType,
    /// The table of token embeddings.
    pub embedding: Embedding,
    /// The layers, first to last.
    pub layers: Vec<Layer>,
    /// The norm after the last layer.
    pub norm: Norm,
    /// The projection to logits.
    pub head: Head,
}

/// The table of token embeddings.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Embedding {
    /// `[vocabulary_size, hidden_size]`, a row a token.
    pub weight: WeightRef,
}

/// One layer: `x += mixer(mixer_norm(x))`, then `x += mlp(mlp_norm(x))`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Layer {
    /// The norm in front of the mixer.
    pub mixer_norm: Norm,
    /// What lets positions see each other.
    pub mixer: Mixer,
    /// The norm in front of the MLP.
    pub mlp_norm: Norm,
    /// What is applied to each position by itself.
    pub mlp: Mlp,
}

/// The part of a layer through which positions see each other, and which keeps state between steps.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Mixer {
    /// Causal self-attention over earlier positions; its state is their keys and values.
    Attention(Attention),
}

/// Causal self-attention with rotary positions.
///
/// Query head `h` attends to key/value head `h / (query_heads / kv_heads)` (grouped-query attention, Ainslie et al.,
/// 2023): `softmax(scale · q·kᵀ) · v` over the positions up to its own, or the last [`window`](Self::window) of them.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Attention {
    /// The number of query heads, a multiple of `kv_heads`.
    pub query_heads: usize,
    /// The number of key/value heads.
    pub kv_heads: usize,
    /// The width of each head.
    pub head_dim: usize,
    /// What the products of queries and keys are multiplied with.
    pub scale: f32,
    /// How many positions a position sees, its own included: `p` sees those from `p − window + 1` (sliding window,
    /// Beltagy et al., 2020, "Longformer"). `None`: all up to its own.
    pub window: Option<usize>,
    /// How queries and keys are rotated by position.
    pub rope: Rope,
    /// `hidden_size` to `query_heads · head_dim`, head after head.
    pub query: Linear,
    /// `hidden_size` to `kv_heads · head_dim`.
    pub key: Linear,
    /// `hidden_size` to `kv_heads · head_dim`.
    pub value: Linear,
    /// `query_heads · head_dim` to `hidden_size`.
    pub output: Linear,
}

/// A gated MLP: `down(activation(gate(x)) · up(x))` (Shazeer, 2020, "GLU Variants Improve Transformer").
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Mlp {
    /// The function applied to the gate.
    pub activation: Activation,
    /// `hidden_size` to the intermediate size.
    pub gate: Linear,
    /// `hidden_size` to the intermediate size.
    pub up: Linear,
    /// The intermediate size to `hidden_size`.
    pub down: Linear,
}

/// A nonlinearity, applied to each element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Activation {
    /// `x · sigmoid(x)`, also called swish.
    Silu,
    /// `x · Φ(x)` with the error function: `x/2 · (1 + erf(x/√2))`.
    Gelu,
    /// The approximation `x/2 · (1 + tanh(√(2/π) · (x + 0.044715·x³)))` (Hendrycks and Gimpel, 2016).
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
}

/// Root-mean-square normalisation over the last dimension: `x / √(mean(x²) + epsilon) · weight`, with the mean
/// and the quotient in single precision (Zhang and Sennrich, 2019).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Norm {
    /// One factor an element.
    pub weight: WeightRef,
    /// What is added to the mean square.
    pub epsilon: f32,
}

/// A projection: `x · weightᵀ + bias`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Linear {
    /// `[outputs, inputs]`.
    pub weight: WeightRef,
    /// `[outputs]`, where there is one.
    pub bias: Option<WeightRef>,
}

/// The projection to logits.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Head {
    /// `[vocabulary_size, hidden_size]`; of a tied head the embedding's table.
    pub weight: WeightRef,
    /// Whether it is the embedding's table.
    pub tied: bool,
}

impl Linear {
    /// The number of inputs.
    pub fn inputs(&self) -> usize {
        self.weight.shape.get(1).copied().unwrap_or(0)
    }

    /// The number of outputs.
    pub fn outputs(&self) -> usize {
        self.weight.shape.first().copied().unwrap_or(0)
    }

    fn weights(&self) -> impl Iterator<Item = &WeightRef> {
        std::iter::once(&self.weight).chain(&self.bias)
    }
}

impl Layer {
    /// The weights of this layer in the order of their use.
    fn weights(&self) -> impl Iterator<Item = &WeightRef> {
        let Mixer::Attention(attention) = &self.mixer;
        let projections = [&attention.query, &attention.key, &attention.value, &attention.output];
        let mlp = [&self.mlp.gate, &self.mlp.up, &self.mlp.down];
        std::iter::once(&self.mixer_norm.weight)
            .chain(projections.into_iter().flat_map(Linear::weights))
            .chain(std::iter::once(&self.mlp_norm.weight))
            .chain(mlp.into_iter().flat_map(Linear::weights))
    }
}

impl Decoder {
    /// Every weight once, in the order of use: embedding, layers, final norm, head. A tied head is the embedding, so
    /// it does not come again. Of a quantized weight the companions come with it, in [`WeightRef::tensors`]. The order
    /// depends on nothing but the description.
    pub fn weights(&self) -> impl Iterator<Item = &WeightRef> {
        let mut seen = HashSet::new();
        std::iter::once(&self.embedding.weight)
            .chain(self.layers.iter().flat_map(Layer::weights))
            .chain([&self.norm.weight, &self.head.weight])
            .filter(move |weight| seen.insert(*weight))
    }

    /// The number of parameters: values of all [`weights`](Self::weights).
    pub fn parameters(&self) -> u64 {
        self.weights().map(|weight| weight.elements() as u64).sum()
    }

    /// The bytes of all [`weights`](Self::weights) as they are stored, scales and biases of quantized ones included.
    pub fn weight_bytes(&self) -> u64 {
        self.weights().flat_map(WeightRef::tensors).map(|tensor| tensor.byte_len() as u64).sum()
    }
}
