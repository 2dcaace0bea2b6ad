//! Mixers whose state has a fixed size: convolutions and linear recurrences.

use super::{Activation, Linear, Norm, WeightId};

/// A causal convolution of each channel by itself: output `t` is `Σ weight[c, k] · x[c, t − taps + 1 + k] + bias[c]`, then the
/// activation. Its state is the last `taps − 1` inputs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Convolution {
    /// `[channels, taps]`, the last tap for the newest input.
    pub weight: WeightId,
    /// `[channels]`.
    pub bias: Option<WeightId>,
    /// The number of channels.
    pub channels: usize,
    /// The number of taps.
    pub taps: usize,
    /// What is applied to the sum.
    pub activation: Option<Activation>,
}

/// LFM2's short convolution: `output(c · convolution(b · x))` of the three parts of `input` (Liquid AI, 2025).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShortConvolution {
    /// `hidden_size` to `3 · channels`: `b`, `c`, `x`.
    pub input: Linear,
    /// Over `channels`.
    pub convolution: Convolution,
    /// `channels` to `hidden_size`.
    pub output: Linear,
}

/// The gated delta rule (Yang et al., 2024, "Gated Delta Networks"), as Qwen3-Next has it.
///
/// Queries, keys and values go through one convolution, queries and keys are normalised to length one
/// (`x / √(Σx² + 10⁻⁶)`) and shared by `value_heads / key_heads` consecutive value heads, queries are divided by
/// `√key_dim`. With `g = −exp(decay) · softplus(alpha + alpha_bias)` and `β = sigmoid(beta)` of each value head, its state
/// `S` (`[key_dim, value_dim]`) becomes `S' = e^g · S`, then `S' + k ⊗ β(v − S'ᵀk)`, and gives `Sᵀq`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaRule {
    /// The number of key (and query) heads.
    pub key_heads: usize,
    /// The number of value heads, a multiple of `key_heads`.
    pub value_heads: usize,
    /// The width of keys and queries.
    pub key_dim: usize,
    /// The width of values.
    pub value_dim: usize,
    /// `hidden_size` to `key_heads · key_dim`.
    pub query: Linear,
    /// `hidden_size` to `key_heads · key_dim`.
    pub key: Linear,
    /// `hidden_size` to `value_heads · value_dim`.
    pub value: Linear,
    /// `hidden_size` to `value_heads · value_dim`: the gate `z` of the output.
    pub gate: Linear,
    /// `hidden_size` to `value_heads`.
    pub beta: Linear,
    /// `hidden_size` to `value_heads`.
    pub alpha: Linear,
    /// Over queries, keys and values, one behind the other.
    pub convolution: Convolution,
    /// `[value_heads]`: added to `alpha`.
    pub alpha_bias: WeightId,
    /// `[value_heads]`: the logarithm of the decay's rate.
    pub decay: WeightId,
    /// The norm of each head's result, which is then multiplied by `silu(z)`.
    pub norm: Norm,
    /// `value_heads · value_dim` to `hidden_size`.
    pub output: Linear,
}

/// A selective state space (Dao and Gu, 2024, "Mamba-2").
///
/// `x`, `B` and `C` go through one convolution. With `dt = clamp(softplus(dt + dt_bias))` and `A = −exp(decay)` of each head,
/// its state `S` (`[head_dim, state_size]`) becomes `e^(dt·A) · S + dt · x ⊗ B`, and gives `S·C + skip · x`; the result is
/// multiplied by `silu(z)`, normed and projected. `heads / groups` consecutive heads share `B` and `C`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StateSpace {
    /// The number of heads.
    pub heads: usize,
    /// The width of a head.
    pub head_dim: usize,
    /// How many `B` and `C` there are.
    pub groups: usize,
    /// The width of `B` and `C`.
    pub state_size: usize,
    /// `hidden_size` to `heads · head_dim`: `z`.
    pub gate: Linear,
    /// `hidden_size` to `heads · head_dim + 2 · groups · state_size`: `x`, `B`, `C`.
    pub input: Linear,
    /// `hidden_size` to `heads`.
    pub dt: Linear,
    /// Over `x`, `B` and `C`.
    pub convolution: Convolution,
    /// `[heads]`: added to `dt`.
    pub dt_bias: WeightId,
    /// The bounds of `dt`; the upper may be infinite.
    pub dt_limits: (f32, f32),
    /// `[heads]`: the logarithm of the decay's rate.
    pub decay: WeightId,
    /// `[heads]`.
    pub skip: WeightId,
    /// The norm after the gate; its width is what it normalises over, which divides `heads · head_dim`.
    pub norm: Option<Norm>,
    /// `heads · head_dim` to `hidden_size`.
    pub output: Linear,
}
