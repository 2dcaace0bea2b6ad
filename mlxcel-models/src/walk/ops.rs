//! The operations of a walk.

use crate::decoder::{
    Activation, AttentionCore, Compressor, Convolution, Gating, HeadLinear, LatentAttention, Linear, Norm,
    PositionScale, StateSlot, WeightId,
};
use crate::rope::Rope;

/// The operations that an engine implements to run decoders, on its own kind of values: graph nodes, or
/// arrays that are computed eagerly.
///
/// # Shapes
///
/// Activations are `[tokens, width]`, or `[tokens, heads, width]` where documented; `tokens` are the tokens
/// of all rows of a pass, concatenated. Binary elementwise operations take operands of the same rank and
/// broadcast dimensions of size one. Everything is float32 except for roundings of the precision, before
/// products and in caches.
///
/// # Contract
///
/// *For implementers*: destructure the parts of the description field by field, without `..`, so that a new
/// field does not compile until it is handled. Rows of a pass may be padded; padding must not change the
/// state of later steps.
pub trait Ops {
    /// An activation. Cloning one is cheap.
    type Value: Clone;
    /// How dispatched tokens find their way back, of [`dispatch`](Self::dispatch).
    type Routing;
    /// What goes wrong.
    type Error;

    /// The rows of a table for the tokens of the pass: `[tokens, width]`.
    fn embed(&mut self, table: WeightId) -> Result<Self::Value, Self::Error>;

    /// The same of a table with this many rows, where tokens beyond them read the first.
    fn embed_within(&mut self, table: WeightId, rows: usize) -> Result<Self::Value, Self::Error>;

    /// The rows of a table for the positions of the tokens, each `offset` further on: `[tokens, width]`.
    fn embed_positions(&mut self, table: WeightId, offset: usize) -> Result<Self::Value, Self::Error>;

    /// The rows of a table for the types of the tokens: `[tokens, width]`.
    fn embed_types(&mut self, table: WeightId) -> Result<Self::Value, Self::Error>;

    /// The rows of a table of whole numbers for the tokens of the pass, as integers: `[tokens, width]`.
    fn look_up(&mut self, table: WeightId) -> Result<Self::Value, Self::Error>;

    /// The hidden states that a draft head reads beside the tokens of the pass: `[tokens, width]`.
    fn input_states(&mut self) -> Result<Self::Value, Self::Error>;

    /// The values of a vector, as `[1, n]`.
    fn vector(&mut self, weight: WeightId) -> Result<Self::Value, Self::Error>;

    /// `x · weightᵀ + bias`. Every product with a weight goes through this and its two companions,
    /// [`head_linear`](Self::head_linear) and [`expert_linear`](Self::expert_linear).
    fn linear(&mut self, x: &Self::Value, linear: &Linear) -> Result<Self::Value, Self::Error>;

    /// `[tokens, heads, inputs]` to `[tokens, heads, outputs]`, each head by its own matrix.
    fn head_linear(&mut self, x: &Self::Value, linear: &HeadLinear) -> Result<Self::Value, Self::Error>;

    /// A norm over the last dimension.
    fn norm(&mut self, x: &Self::Value, norm: &Norm) -> Result<Self::Value, Self::Error>;

    /// `x / √(Σx² + epsilon)` over the last dimension.
    fn unit_norm(&mut self, x: &Self::Value, epsilon: f32) -> Result<Self::Value, Self::Error>;

    /// The activation of each element.
    fn activate(&mut self, x: &Self::Value, activation: Activation) -> Result<Self::Value, Self::Error>;

    /// `e` to the power of each element.
    fn exp(&mut self, x: &Self::Value) -> Result<Self::Value, Self::Error>;

    /// Of each element `x` above zero nothing, and else `exp(min(x, epsilon)) − 1 − x`, with `epsilon` `[1,
    /// 1]`.
    fn exp_below(&mut self, x: &Self::Value, epsilon: &Self::Value) -> Result<Self::Value, Self::Error>;

    /// Each element limited to a range, whose upper end may be infinite.
    fn clamp(&mut self, x: &Self::Value, least: f32, most: f32) -> Result<Self::Value, Self::Error>;

    /// `cap · tanh(x / cap)`.
    fn soft_cap(&mut self, x: &Self::Value, cap: f32) -> Result<Self::Value, Self::Error>;

    /// Each element times a number.
    fn scale(&mut self, x: &Self::Value, factor: f32) -> Result<Self::Value, Self::Error>;

    /// Each element plus a number.
    fn offset(&mut self, x: &Self::Value, summand: f32) -> Result<Self::Value, Self::Error>;

    /// The sum of two values.
    fn add(&mut self, a: &Self::Value, b: &Self::Value) -> Result<Self::Value, Self::Error>;

    /// The product of two values, element by element.
    fn multiply(&mut self, a: &Self::Value, b: &Self::Value) -> Result<Self::Value, Self::Error>;

    /// The quotient of two values, element by element.
    fn divide(&mut self, a: &Self::Value, b: &Self::Value) -> Result<Self::Value, Self::Error>;

    /// The sum over the last dimension, which stays with size one.
    fn sum(&mut self, x: &Self::Value) -> Result<Self::Value, Self::Error>;

    /// The mean over the last dimension, which stays with size one.
    fn mean(&mut self, x: &Self::Value) -> Result<Self::Value, Self::Error>;

    /// The square root of each element.
    fn sqrt(&mut self, x: &Self::Value) -> Result<Self::Value, Self::Error>;

    /// What each element exceeds the mean over the last dimension by, less so many standard deviations, and
    /// else zero.
    fn exceed(&mut self, x: &Self::Value, deviations: f32) -> Result<Self::Value, Self::Error> {
        let mean = self.mean(x)?;
        let mean = self.scale(&mean, -1.0)?;
        let centred = self.add(x, &mean)?;
        let squares = self.multiply(&centred, &centred)?;
        let variance = self.mean(&squares)?;
        let spread = self.sqrt(&variance)?;
        let least = self.scale(&spread, -deviations)?;
        let above = self.add(&centred, &least)?;
        self.activate(&above, Activation::Relu)
    }

    /// The softmax over the last dimension.
    fn softmax(&mut self, x: &Self::Value) -> Result<Self::Value, Self::Error>;

    /// The gate of an MLP with its up projection. Engines that fuse the two override it.
    fn gate(
        &mut self,
        gating: Gating,
        gate: &Self::Value,
        up: &Self::Value,
    ) -> Result<Self::Value, Self::Error> {
        match gating {
            Gating::Activated(activation) => {
                let gate = self.activate(gate, activation)?;
                self.multiply(&gate, up)
            }
            Gating::Ungated(activation) => self.activate(gate, activation),
            Gating::Scaled { activation, scale } => {
                let gate = self.scale(gate, scale)?;
                let gate = self.activate(&gate, activation)?;
                self.multiply(&gate, up)
            }
            Gating::Sparse { activation, deviations } => {
                let gate = self.exceed(gate, deviations)?;
                let gate = self.activate(&gate, activation)?;
                self.multiply(&gate, up)
            }
            Gating::Limited { activation, limit } => {
                let gate = self.activate(gate, activation)?;
                let gate = self.clamp(&gate, f32::NEG_INFINITY, limit)?;
                let up = self.clamp(up, -limit, limit)?;
                self.multiply(&gate, &up)
            }
            Gating::ClampedSwiglu { alpha, limit, offset } => {
                let gate = self.clamp(gate, f32::NEG_INFINITY, limit)?;
                let up = self.clamp(up, -limit, limit)?;
                let steep = self.scale(&gate, alpha)?;
                let steep = self.activate(&steep, Activation::Sigmoid)?;
                let gate = self.multiply(&gate, &steep)?;
                let up = if offset == 0.0 { up } else { self.offset(&up, offset)? };
                self.multiply(&up, &gate)
            }
        }
    }

    /// Matrices (`[tokens, n, n]`) of numbers above zero whose columns are divided by their sums plus
    /// `epsilon` so many times, at least once, and whose rows are divided likewise between (Sinkhorn and
    /// Knopp, 1967).
    fn balance(
        &mut self,
        x: &Self::Value,
        epsilon: f32,
        iterations: usize,
    ) -> Result<Self::Value, Self::Error>;

    /// `[tokens, heads · width]` as `[tokens, heads, width]`.
    fn split_heads(&mut self, x: &Self::Value, heads: usize) -> Result<Self::Value, Self::Error>;

    /// `[tokens, heads, width]` as `[tokens, heads · width]`.
    fn join_heads(&mut self, x: &Self::Value) -> Result<Self::Value, Self::Error>;

    /// Elements `start..end` of the last dimension.
    fn slice(&mut self, x: &Self::Value, start: usize, end: usize) -> Result<Self::Value, Self::Error>;

    /// Values consecutively along the last dimension.
    fn concatenate(&mut self, values: &[Self::Value]) -> Result<Self::Value, Self::Error>;

    /// Of `[tokens, heads, width]`, elements `2i` and `2i + 1` of the first `rotary_dim` go to `i` and `i +
    /// rotary_dim / 2`: what turns an interleaved rotary embedding into one of halves, for queries and
    /// keys.
    fn deinterleave(&mut self, x: &Self::Value, rotary_dim: usize) -> Result<Self::Value, Self::Error>;

    /// The opposite of [`deinterleave`](Self::deinterleave) for all elements of heads.
    fn interleave(&mut self, x: &Self::Value) -> Result<Self::Value, Self::Error>;

    /// Queries or keys (`[tokens, heads, width]`) rotated by an embedding of the decoder's, in halves.
    fn rotate(&mut self, x: &Self::Value, rope: &Rope) -> Result<Self::Value, Self::Error>;

    /// `[tokens, heads, width]` times the scale at each token's position.
    fn scale_by_position(
        &mut self,
        x: &Self::Value,
        scale: &PositionScale,
    ) -> Result<Self::Value, Self::Error>;

    /// Only the tokens whose logits are wanted; requested after the last mixer, so that the remainder is not
    /// computed for the others.
    fn select(&mut self, x: &Self::Value) -> Result<Self::Value, Self::Error>;

    /// Attention of queries (`[tokens, query_heads, head_dim]`) to the cache at `slot`, into which keys and
    /// values (`[tokens, kv_heads, head_dim]`) go first. Queries and keys come before the rotation by
    /// `core.rope`, if it has one. Gives `[tokens, query_heads · head_dim]`. Where the result goes into
    /// nothing but one projection, that is the `reader`, to whose taste it may be rounded at once.
    fn attention(
        &mut self,
        query: &Self::Value,
        key: &Self::Value,
        value: &Self::Value,
        core: &AttentionCore,
        reader: Option<&Linear>,
        slot: StateSlot,
    ) -> Result<Self::Value, Self::Error>;

    /// Attention of queries to the cache at `slot` as the last [`attention`](Self::attention) with this slot
    /// left it in this pass. Otherwise the same.
    fn shared_attention(
        &mut self,
        query: &Self::Value,
        core: &AttentionCore,
        reader: Option<&Linear>,
        slot: StateSlot,
    ) -> Result<Self::Value, Self::Error>;

    /// Attention in both directions: queries attend to the keys of all tokens of their row, or to those
    /// within the window, and nothing is kept. Otherwise as [`attention`](Self::attention). A row that is
    /// padded attends to none of its padding.
    fn bidirectional_attention(
        &mut self,
        query: &Self::Value,
        key: &Self::Value,
        value: &Self::Value,
        core: &AttentionCore,
        reader: Option<&Linear>,
    ) -> Result<Self::Value, Self::Error>;

    /// Attention of absorbed queries (`[tokens, heads, rank + rope_dim]`) to the latents at `slot`, into
    /// which `entry` (`[tokens, rank + rope_dim]`) goes first. The last `rope_dim` elements of both come
    /// before their rotation, if there is one. Gives `[tokens, heads, rank]`. Of `latent` only sizes,
    /// scale and rotary embedding are read. Tokens attend to the positions that were
    /// [selected](Self::select_positions) by the keys at `selected` in this pass, or to all up to their own.
    fn latent_attention(
        &mut self,
        query: &Self::Value,
        entry: &Self::Value,
        latent: &LatentAttention,
        slot: StateSlot,
        selected: Option<StateSlot>,
    ) -> Result<Self::Value, Self::Error>;

    /// The sum of values weighted by a softmax of gates, element by element, over the window that a token is
    /// the last of: `[tokens, width]`. Of `x` the first half of the last dimension are values, the others
    /// gates, to which those of `compressor` are added by the place in the window; both are of the series of
    /// `compressor`. The state at `slot` is what lies before the tokens. Only the results of tokens that are
    /// the last of a whole window, counted from position 0, have to be right. Nothing lies before position 0.
    fn compress(
        &mut self,
        x: &Self::Value,
        compressor: &Compressor,
        slot: StateSlot,
    ) -> Result<Self::Value, Self::Error>;

    /// Attention of rotated queries (`[tokens, query_heads, width]`) to the cache at `slot`, into which the
    /// rotated `key` (`[tokens, 1, width]`) goes first, as a value too, and to the `entries`. Both share one
    /// softmax, and sinks. Of `core` no rotary embedding is read. Gives `[tokens, query_heads · width]`.
    fn compressed_attention(
        &mut self,
        query: &Self::Value,
        key: &Self::Value,
        entries: &Entries<Self::Value>,
        core: &AttentionCore,
        slot: StateSlot,
    ) -> Result<Self::Value, Self::Error>;

    /// Selects, by `(count, rate)`, for each token the `count` positions up to its own with the highest
    /// scores, or all if there are fewer, for [`latent_attention`](Self::latent_attention) later in this
    /// pass. Equal scores are in the order of their positions. The score of a position is the sum over the
    /// heads of `weights` (`[tokens, heads]`) times the products of `query` (`[tokens, heads, head_dim]`)
    /// with the key at `slot` that are above zero; `key` (`[tokens, 1, head_dim]`) goes there first. With a
    /// `rate` above 1 only the last of each `rate` positions can be selected.
    fn select_positions(
        &mut self,
        query: &Self::Value,
        key: &Self::Value,
        weights: &Self::Value,
        selection: (usize, usize),
        slot: StateSlot,
    ) -> Result<(), Self::Error>;

    /// A causal convolution of `[tokens, channels]` over the inputs at `slot` and its own, activation
    /// included.
    fn convolve(
        &mut self,
        x: &Self::Value,
        convolution: &Convolution,
        slot: StateSlot,
    ) -> Result<Self::Value, Self::Error>;

    /// Of each token the one before it in its row, `[tokens, width]`; before the first is what lies at
    /// `slot`, which becomes the last.
    fn previous(&mut self, x: &Self::Value, slot: StateSlot) -> Result<Self::Value, Self::Error>;

    /// The gated delta rule over the state `[value_heads, key_dim, value_dim]` at `slot`: `query` and `key`
    /// are `[tokens, key_heads, key_dim]`, normalised and scaled; `value` is `[tokens, value_heads,
    /// value_dim]`; `decay`, the logarithm of what the state is multiplied with, and `beta` are `[tokens,
    /// value_heads]`; or `decay` is `[tokens, value_heads, key_dim]`, for each row of the state. Gives
    /// `[tokens, value_heads, value_dim]`.
    fn delta_rule(
        &mut self,
        query: &Self::Value,
        key: &Self::Value,
        value: &Self::Value,
        decay: &Self::Value,
        beta: &Self::Value,
        slot: StateSlot,
    ) -> Result<Self::Value, Self::Error>;

    /// The generalised delta rule over the state `[heads, key_dim, value_dim]` at `slot`: a state `S` becomes
    /// `e^decay · S + rewrite ⊗ Sᵀremoval + key ⊗ value`, whose middle reads what lay there before the decay,
    /// and the result is `Sᵀquery`. Of `operands` `query`, `key`, `decay`, `removal` and `rewrite` are
    /// `[tokens, heads, key_dim]`, and `value` is `[tokens, heads, value_dim]`, as is the result.
    fn generalized_delta_rule(
        &mut self,
        operands: &DeltaRuleOperands<Self::Value>,
        slot: StateSlot,
    ) -> Result<Self::Value, Self::Error>;

    /// The recurrence of a state space over the state `[heads, head_dim, state_size]` at `slot`: `x` is
    /// `[tokens, heads, head_dim]`, `dt` `[tokens, heads]`, `rate` (`A`) `[1, heads]`, or `[1, heads,
    /// state_size]` with one for each number of a state, `input` (`B`) and `output` (`C`) `[tokens, groups,
    /// state_size]`. Gives `[tokens, heads,
    /// head_dim]`.
    fn state_space(
        &mut self,
        x: &Self::Value,
        dt: &Self::Value,
        rate: &Self::Value,
        input: &Self::Value,
        output: &Self::Value,
        slot: StateSlot,
    ) -> Result<Self::Value, Self::Error>;

    /// Scores (`[tokens, experts]`) with all that are not in the `kept` best groups at −∞; a group is
    /// `experts / groups` consecutive ones, and its score the sum of its two best.
    fn keep_groups(
        &mut self,
        scores: &Self::Value,
        groups: usize,
        kept: usize,
    ) -> Result<Self::Value, Self::Error>;

    /// The two largest of each row of router logits (`[tokens, experts]`), and their weights, each `[tokens,
    /// 2]`: see [`Scoring::SparseMixer`](crate::Scoring::SparseMixer).
    fn sparse_mixer(
        &mut self,
        logits: &Self::Value,
        tolerance: f32,
    ) -> Result<(Self::Value, Self::Value), Self::Error>;

    /// The indices of the `count` largest of each row of `[tokens, n]`, as `[tokens, count]` integers,
    /// largest first; equal elements are in the order of their indices.
    fn top(&mut self, x: &Self::Value, count: usize) -> Result<Self::Value, Self::Error>;

    /// Integers, each at most `most`.
    fn at_most(&mut self, indices: &Self::Value, most: usize) -> Result<Self::Value, Self::Error>;

    /// Of each row of `[tokens, n]` the elements at `indices` (`[tokens, count]` integers).
    fn pick(&mut self, x: &Self::Value, indices: &Self::Value) -> Result<Self::Value, Self::Error>;

    /// Tokens (`[tokens, width]`) arranged for the experts that were chosen for them (`[tokens, chosen]`
    /// integers below `experts`), in a shape of the engine's own, on which only elementwise operations,
    /// [`expert_linear`](Self::expert_linear) and [`combine`](Self::combine) are asked for.
    fn dispatch(
        &mut self,
        x: &Self::Value,
        chosen: &Self::Value,
        experts: usize,
    ) -> Result<(Self::Value, Self::Routing), Self::Error>;

    /// Dispatched tokens times the weight (`[tokens, chosen]`) of the expert that each is arranged for.
    fn weigh(
        &mut self,
        x: &Self::Value,
        routing: &Self::Routing,
        weights: &Self::Value,
    ) -> Result<Self::Value, Self::Error>;

    /// Dispatched tokens through their experts' matrices.
    fn expert_linear(
        &mut self,
        x: &Self::Value,
        routing: &Self::Routing,
        linear: &Linear,
    ) -> Result<Self::Value, Self::Error>;

    /// The sum of each token's results, with `weights` (`[tokens, chosen]`) if there are any: `[tokens,
    /// width]`.
    fn combine(
        &mut self,
        x: &Self::Value,
        routing: &Self::Routing,
        weights: Option<&Self::Value>,
    ) -> Result<Self::Value, Self::Error>;
}

/// The entries that [`Ops::compressed_attention`] attends to beside keys.
#[derive(Clone, Debug)]
pub struct Entries<V> {
    /// Those of the windows that the tokens of the pass are the last of, `[tokens, 1, width]`: keys and values.
    pub entry: V,
    /// The number of positions of a window. Tokens see the entries at the last position of each window up to
    /// their own.
    pub rate: usize,
    /// The state that has those of earlier positions.
    pub slot: StateSlot,
    /// The slot of the keys that the entries were [selected](Ops::select_positions) by in this pass, if not
    /// all are seen.
    pub selected: Option<StateSlot>,
}

/// The operands of [`Ops::generalized_delta_rule`].
#[derive(Clone, Debug)]
pub struct DeltaRuleOperands<V> {
    /// What the state is read by.
    pub query: V,
    /// What values are written by.
    pub key: V,
    /// The values.
    pub value: V,
    /// The logarithm of what each row of the state is multiplied with.
    pub decay: V,
    /// What the state is read by for what is added to it.
    pub removal: V,
    /// What that is written by.
    pub rewrite: V,
}
