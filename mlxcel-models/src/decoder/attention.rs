//! Attention: over keys and values, and over a compressed latent.

use super::{HeadLinear, Linear, Norm, WeightId};
use crate::rope::Rope;

/// Causal self-attention.
///
/// Query head `h` attends to key/value head `h / (query_heads / kv_heads)` (grouped-query attention, Ainslie et al.,
/// 2023): `softmax(scale · q·kᵀ) · v` over the positions up to its own, or the last [`window`](AttentionCore::window) of them.
/// Queries and keys are normed, then rotated.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// The number of query heads, a multiple of `kv_heads`.
    pub query_heads: usize,
    /// The number of key/value heads.
    pub kv_heads: usize,
    /// The width of each head.
    pub head_dim: usize,
    /// `hidden_size` to `query_heads · head_dim`, head after head.
    pub query: Linear,
    /// `hidden_size` to `kv_heads · head_dim`.
    pub key: Linear,
    /// `hidden_size` to `kv_heads · head_dim`.
    pub value: Linear,
    /// `query_heads · head_dim` to `hidden_size`.
    pub output: Linear,
    /// The norm of queries, where there is one.
    pub query_norm: Option<HeadNorm>,
    /// The norm of keys, where there is one.
    pub key_norm: Option<HeadNorm>,
    /// The magnitude to which queries, keys and values are limited once they are projected and normed (OLMoE's `clip_qkv`).
    pub clip: Option<f32>,
    /// A projection of the layer's input, `hidden_size` to `query_heads · head_dim`, whose sigmoid multiplies what the heads
    /// give, before `output` (Qwen3-Next).
    pub gate: Option<Linear>,
    /// How scores are made and what they see.
    pub core: AttentionCore,
}

/// The part of [`Attention`] between its projections.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionCore {
    /// What the products of queries and keys are multiplied with.
    pub scale: f32,
    /// How many positions a position sees, its own included: `p` sees those from `p − window + 1` (sliding window,
    /// Beltagy et al., 2020, "Longformer"). `None`: all up to its own.
    pub window: Option<usize>,
    /// How queries and keys are rotated by position; `None`: not at all.
    pub rope: Option<Rope>,
    /// Scores become `cap · tanh(score / cap)` (Gemma 2).
    pub soft_cap: Option<f32>,
    /// `[query_heads]`: a logit per head that takes part in the softmax and has no value (gpt-oss).
    pub sinks: Option<WeightId>,
    /// A factor of queries that grows with the position.
    pub query_scale: Option<PositionScale>,
}

/// `1 + beta · ln(1 + ⌊position / original_context⌋)`, what Llama 4 and Ministral 3 multiply queries with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PositionScale {
    /// How fast it grows.
    pub beta: f32,
    /// The positions for each unit under the logarithm.
    pub original_context: usize,
}

/// A norm of queries or keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadNorm {
    /// The norm.
    pub norm: Norm,
    /// Over what.
    pub scope: NormScope,
}

/// What a [`HeadNorm`] normalises over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NormScope {
    /// Each head by itself.
    Head,
    /// All heads together, as the projection gives them.
    Full,
}

/// Multi-head latent attention (DeepSeek-AI, 2024, "DeepSeek-V2"), in the absorbed form.
///
/// A position keeps a latent of `rank` numbers and a rotary key of `rope_dim` numbers, which all heads share. With
/// `[q, r]` the parts of a head's query, its score is `scale · (key_up(q) · latent + r · key)`, and what it gives is
/// `value_up(Σ softmax · latent)`.
#[derive(Clone, Debug, PartialEq)]
pub struct LatentAttention {
    /// The number of heads.
    pub heads: usize,
    /// The width of a query's part that is not rotated.
    pub plain_dim: usize,
    /// The width of a query's rotated part, and of the shared key.
    pub rope_dim: usize,
    /// The width of the values of a head.
    pub value_dim: usize,
    /// The width of the latent.
    pub rank: usize,
    /// How queries are made: `heads · (plain_dim + rope_dim)` outputs, of each head the plain part first.
    pub query: LatentQuery,
    /// `hidden_size` to `rank + rope_dim`: the latent, then the shared key.
    pub down: Linear,
    /// The norm of the latent.
    pub norm: Norm,
    /// `plain_dim` to `rank` for each head.
    pub key_up: HeadLinear,
    /// `rank` to `value_dim` for each head.
    pub value_up: HeadLinear,
    /// `heads · value_dim` to `hidden_size`.
    pub output: Linear,
    /// What scores are multiplied with.
    pub scale: f32,
    /// How rotary parts are rotated.
    pub rope: Rope,
}

/// How [`LatentAttention`] makes its queries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LatentQuery {
    /// By one projection.
    Direct(Linear),
    /// Through a narrower latent of their own.
    Compressed {
        /// `hidden_size` to the latent.
        down: Linear,
        /// The norm of the latent.
        norm: Norm,
        /// The latent to queries.
        up: Linear,
    },
}
