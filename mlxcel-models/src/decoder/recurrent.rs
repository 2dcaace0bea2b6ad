//! Mixers with state of fixed size: convolutions and linear recurrences.

use super::{Activation, Linear, Mlp, Norm, Projection, StateShape, WeightId};

/// A depthwise causal convolution: output `t` is `Σ weight[c, k] · x[c, t − taps + 1 + k] + bias[c]`, then
/// the activation. Its state is the last `taps − 1` inputs.
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
    /// The activation of the sum.
    pub activation: Option<Activation>,
}

/// LFM2's short convolution: `output(c · convolution(b · x))` of the three parts of `input` (Liquid AI,
/// 2025).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShortConvolution {
    /// `hidden_size` to `3 · channels`: `b`, `c`, `x`.
    pub input: Linear,
    /// The convolution of `channels`.
    pub convolution: Convolution,
    /// `channels` to `hidden_size`.
    pub output: Linear,
}

/// The gated delta rule (Yang et al., 2024, "Gated Delta Networks"), as Qwen3-Next has it.
///
/// One convolution is applied to queries, keys and values. Queries and keys are normalized to length one (`x
/// / √(Σx² + 10⁻⁶)`) and shared by `value_heads / key_heads` consecutive value heads; queries are divided by
/// `√key_dim`. With `g` by [`decay_form`](Self::decay_form), which is a number for each value head or for
/// each channel of its keys, and `β = beta_scale · sigmoid(beta)` per value head, the state `S` (`[key_dim,
/// value_dim]`) becomes `S' = e^g · S`, then `S' + k ⊗ β(v − S'ᵀk)`; the result is `Sᵀq`. Kimi Linear has it
/// by channel (Kimi Team, 2025, "Kimi Linear").
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaRule {
    /// The number of key (and query) heads.
    pub key_heads: usize,
    /// The number of value heads, a multiple of `key_heads`.
    pub value_heads: usize,
    /// Which value heads a key head serves.
    pub sharing: HeadSharing,
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
    pub gate: Projection,
    /// What becomes of `z` before it multiplies.
    pub gate_activation: Activation,
    /// `hidden_size` to `value_heads`.
    pub beta: Linear,
    /// 1, or 2 so that states may have negative eigenvalues (Grazzi et al., 2024; OLMo Hybrid).
    pub beta_scale: f32,
    /// `hidden_size` to `value_heads`, or `value_heads · key_dim` where channels decay.
    pub alpha: Projection,
    /// The convolution of concatenated queries, keys and values.
    pub convolution: Convolution,
    /// Added to `alpha`, of its width.
    pub alpha_bias: WeightId,
    /// `[value_heads]`: the logarithm of the decay's rate.
    pub decay: WeightId,
    /// How the logarithm of the decay follows from the two.
    pub decay_form: Decay,
    /// What decays together.
    pub decay_scope: DecayScope,
    /// The norm of each head's result, which the activation of `z` then multiplies.
    pub norm: Norm,
    /// `value_heads · value_dim` to `hidden_size`.
    pub output: Linear,
}

/// Which of several value heads share a key head of a [`DeltaRule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HeadSharing {
    /// Neighbours, as attention with grouped queries has it.
    Neighbours,
    /// Every `key_heads`-th, as GGUF files of Qwen3.5 store them.
    Turns,
}

/// The logarithm `g` of what the state of a [`DeltaRule`] is multiplied with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decay {
    /// `−exp(decay) · softplus(alpha + alpha_bias)`.
    Softplus,
    /// `bound · sigmoid(exp(decay) · (alpha + alpha_bias))` (Ling 3).
    Bounded {
        /// The bound, a negative number.
        bound: f32,
    },
}

/// What decays together in the state of a [`DeltaRule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DecayScope {
    /// The state of a value head.
    Head,
    /// Each row of it, which belongs to a channel of keys.
    Channel,
}

/// A selective state space (Dao and Gu, 2024, "Mamba-2").
///
/// One convolution is applied to `x`, `B` and `C`. With `dt = clamp(softplus(dt + dt_bias))` and `A =
/// −exp(decay)` per head, the state `S` (`[head_dim, state_size]`) becomes `e^(dt·A) · S + dt · x ⊗ B`, and
/// the result is `S·C + skip · x`, multiplied by `silu(z)`, normalized and projected; or normalized first.
/// `heads / groups` consecutive heads share `B` and `C`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StateSpace {
    /// The number of heads.
    pub heads: usize,
    /// The width of a head.
    pub head_dim: usize,
    /// The number of groups, each with its own `B` and `C`.
    pub groups: usize,
    /// The width of `B` and `C`.
    pub state_size: usize,
    /// `hidden_size` to `heads · head_dim`: `z`.
    pub gate: Linear,
    /// `hidden_size` to `heads · head_dim + 2 · groups · state_size`: `x`, `B`, `C`.
    pub input: Linear,
    /// `hidden_size` to `heads`.
    pub dt: Linear,
    /// Factors of the results of the three projections.
    pub scales: StateSpaceScales,
    /// The convolution of `x`, `B` and `C`.
    pub convolution: Convolution,
    /// `[heads]`: added to `dt`.
    pub dt_bias: WeightId,
    /// The bounds of `dt`; the upper may be infinite.
    pub dt_limits: (f32, f32),
    /// `[heads]`: the logarithm of the decay's rate.
    pub decay: WeightId,
    /// `[heads]`.
    pub skip: WeightId,
    /// The norm after the gate, or before it if [`norm_first`](Self::norm_first). Its width, which divides
    /// `heads · head_dim`, is the number of elements normalized together.
    pub norm: Option<Norm>,
    /// Whether the norm comes before the gate.
    pub norm_first: bool,
    /// `heads · head_dim` to `hidden_size`.
    pub output: Linear,
}

/// A selective state space with a step and a decay for each channel (Gu and Dao, 2023, "Mamba").
///
/// A convolution and its activation are applied to `x`. From its result follow `dt =
/// softplus(step(norm(rank)))` for each channel, and `B` and `C` for all. With `A = −exp(decay)` the state
/// `S` (`[channels, state_size]`) becomes `e^(dt·A) · S + (dt · x) ⊗ B`, and the result is `S·C + skip · x`,
/// multiplied by `silu(z)` and projected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SelectiveScan {
    /// The number of channels.
    pub channels: usize,
    /// The width of `B` and `C`.
    pub state_size: usize,
    /// `hidden_size` to `channels`: `x`.
    pub input: Linear,
    /// `hidden_size` to `channels`: `z`.
    pub gate: Linear,
    /// The convolution of `x`.
    pub convolution: Convolution,
    /// `channels` to few numbers, from which the steps follow.
    pub rank: Linear,
    /// `channels` to `state_size`: `B`.
    pub state_input: Linear,
    /// `channels` to `state_size`: `C`.
    pub state_output: Linear,
    /// Norms of the results of these three (Jamba).
    pub norms: Option<[Norm; 3]>,
    /// From the outputs of `rank` to `channels`.
    pub step: Linear,
    /// `[channels · state_size]`: the logarithm of the decay's rate, channel by channel.
    pub decay: WeightId,
    /// `[channels]`.
    pub skip: WeightId,
    /// `channels` to `hidden_size`.
    pub output: Linear,
}

/// Factors of what the projections of a [`StateSpace`] give (Falcon H1).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StateSpaceScales {
    /// That of `z`.
    pub gate: f32,
    /// Those of `x`, `B` and `C`.
    pub input: [f32; 3],
    /// That of `dt`, before its bias.
    pub dt: f32,
}

impl StateSpaceScales {
    /// All are one.
    pub const ONE: Self = Self { gate: 1.0, input: [1.0; 3], dt: 1.0 };
}

/// A projection that reads a mix of each token and the one before it: `projection(x + mix · (before − x))`,
/// with zeros before the first token of a sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShiftedProjection {
    /// `[hidden_size]`.
    pub mix: WeightId,
    /// From `hidden_size`.
    pub projection: Projection,
}

/// An MLP that reads a mix of each token and the one before it: `mlp(x + mix · (before − x))`, the channel
/// mixing of RWKV. Its state is the last token's `x`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShiftedMlp {
    /// The number of elements of `x`, `hidden_size`.
    pub width: usize,
    /// `[width]`.
    pub mix: WeightId,
    /// The MLP.
    pub mlp: Mlp,
}

/// The generalised delta rule (Peng et al., 2025, "RWKV-7 Goose with Expressive Dynamic State Evolution"):
/// what is removed from the state is read before it decays, and written back by another key than the values.
///
/// With a decay `w = exp(decay_bound · sigmoid(decay))` and a rate `a = sigmoid(rate)` for each channel of
/// keys, and `n` the product `removal_scale · k`, of length one in each head, the state `S` (`[head_dim,
/// head_dim]`) becomes `w · S − (a · n) ⊗ Sᵀn + k' ⊗ v`, where `k' = k · (1 + (a − 1) · rate_scale)`. The
/// result is `Sᵀq`, normalized in each head, plus `Σ(q · k' · bonus) · v`, and is multiplied by the gate and
/// projected.
///
/// The values of the first such mixer of a network are read by all later ones, where `v` is `v + mix ·
/// (v_first − v)` with `mix = sigmoid(value_mix)` ("value residual").
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GeneralizedDeltaRule {
    /// The number of elements of what it reads, `hidden_size`.
    pub width: usize,
    /// The number of heads.
    pub heads: usize,
    /// The width of a head.
    pub head_dim: usize,
    /// To `heads · head_dim`, as all of these: queries `q`, which RWKV calls receptance.
    pub query: ShiftedProjection,
    /// Keys `k`.
    pub key: ShiftedProjection,
    /// Values `v`.
    pub value: ShiftedProjection,
    /// How much of the first mixer's values goes into values; it reads what `value` reads. `None` in the
    /// first mixer.
    pub value_mix: Option<Projection>,
    /// The decay, before its sigmoid.
    pub decay: ShiftedProjection,
    /// The logarithm of the strongest decay, a negative number.
    pub decay_bound: f32,
    /// How much is removed, before its sigmoid.
    pub rate: ShiftedProjection,
    /// The gate of the result.
    pub gate: ShiftedProjection,
    /// `[heads · head_dim]`: factors of keys in `n`.
    pub removal_scale: WeightId,
    /// `[heads · head_dim]`: how much the rate weakens keys.
    pub rate_scale: WeightId,
    /// `[heads · head_dim]`: factors of what a token's query reads of its own value in addition.
    pub bonus: WeightId,
    /// The norm of each head's result.
    pub norm: Norm,
    /// `heads · head_dim` to `hidden_size`.
    pub output: Linear,
}

impl GeneralizedDeltaRule {
    /// The projections of mixes with the token before.
    pub fn shifted(&self) -> [ShiftedProjection; 6] {
        let &Self { query, key, value, decay, rate, gate, .. } = self;
        [query, key, value, decay, rate, gate]
    }
}

/// The state of what reads the token before, of so many elements: `[width, 1]`, as that of a convolution of
/// two taps.
pub(super) fn previous_state(width: usize) -> StateShape {
    StateShape::Fixed { shape: vec![width, 1] }
}
