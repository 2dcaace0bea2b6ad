//! The operations of a decoder's walk, on MLX arrays.
//!
//! Rows of a pass are consecutive, without padding. Operations across positions (attention, convolutions,
//! recurrences) run row by row over each row's states; all others process the tokens of all rows at once.

mod attention;
mod compressed;
mod experts;
mod recurrent;
mod selection;
pub(super) mod triangles;

use std::collections::HashMap;

use mlxcel_core::{Error, Result};
use mlxcel_models::walk::{DeltaRuleOperands, Entries, Ops};
use mlxcel_models::{
    Activation, AttentionCore, Compressor, Convolution, Gating, HeadLinear, LatentAttention, Linear, Norm,
    NormKind, PositionScale, Rope, StateSlot, WeightId,
};

use self::experts::Routing;
use self::selection::Selected;
use self::triangles::Triangles;
use super::adapters::RowSlots;
use super::cache::Visible;
use super::compute::{self, Masks, activate, clamp, embed};
use super::network::{Inputs, Network, Span, Wanted, inconsistent};
use super::rotary::RotaryAt;
use super::state::States;
use super::weights::Derived;
use crate::array::{Array, DType, concatenate};

/// The operations for one pass.
pub(super) struct PassOps<'a> {
    pub(super) network: &'a Network,
    pub(super) inputs: Inputs<'a>,
    pub(super) spans: &'a [Span],
    /// Each span's states before the pass.
    pub(super) states: &'a [Option<&'a States>],
    /// Each span's states after the pass, as far as the walk has come.
    pub(super) filled: Vec<States>,
    pub(super) wanted: Wanted<'a>,
    pub(super) slots: RowSlots,
    /// Each rotary embedding at the positions of the spans.
    pub(super) rotations: Vec<RotaryAt<'a>>,
    pub(super) masks: Masks,
    pub(super) triangles: Triangles,
    /// What attention of this pass has seen by the slots of caches that other layers read too: for each span
    /// its parts, of so many queries.
    pub(super) visible: HashMap<StateSlot, Vec<Vec<(usize, Visible)>>>,
    /// The positions that this pass has selected by the index keys at a slot, for each span.
    pub(super) selected: HashMap<StateSlot, Vec<Selected>>,
}

impl PassOps<'_> {
    /// `x` in the type of activations, for products.
    fn narrow(&self, x: &Array) -> Result<Array> {
        match self.network.numerics.activation {
            // Float32 is the widest type.
            DType::F32 => Ok(x.clone()),
            narrow => x.astype(narrow),
        }
    }

    /// One number per token, computed from its position, as `[tokens, 1, 1]` in float32.
    fn by_position(&self, of: impl Fn(usize) -> f32) -> Result<Array> {
        let values: Vec<f32> = self.spans.iter().flat_map(Span::positions).map(of).collect();
        Array::from_slice(&values, &[values.len(), 1, 1])
    }
}

impl Ops for PassOps<'_> {
    type Value = Array;
    type Routing = Routing;
    type Error = Error;

    fn embed(&mut self, table: WeightId) -> Result<Array> {
        embed(self.network.weights.get(table)?, self.inputs.tokens, self.network.numerics.activation)
    }

    fn embed_within(&mut self, table: WeightId, rows: usize) -> Result<Array> {
        let rows = Array::from_slice(&[u32::try_from(rows).unwrap_or(u32::MAX)], &[1])?;
        let first = Array::from_slice(&[0u32], &[1])?;
        let Inputs { tokens, .. } = self.inputs;
        let tokens = rows.greater(tokens)?.select(tokens, &first)?;
        embed(self.network.weights.get(table)?, &tokens, self.network.numerics.activation)
    }

    fn embed_positions(&mut self, table: WeightId, offset: usize) -> Result<Array> {
        let position = |position: usize| u32::try_from(position + offset).unwrap_or(u32::MAX);
        let rows: Vec<u32> = self.spans.iter().flat_map(Span::positions).map(position).collect();
        let rows = Array::from_slice(&rows, &[rows.len()])?;
        embed(self.network.weights.get(table)?, &rows, self.network.numerics.activation)
    }

    fn embed_types(&mut self, table: WeightId) -> Result<Array> {
        let table = self.network.weights.get(table)?;
        match self.inputs.types {
            Some(types) => embed(table, types, self.network.numerics.activation),
            // The row of type 0, for all tokens.
            None => embed(table, &Array::from_slice(&[0u32], &[1])?, self.network.numerics.activation),
        }
    }

    fn look_up(&mut self, table: WeightId) -> Result<Array> {
        self.network.weights.dense(table)?.take(self.inputs.tokens, 0)?.astype(DType::U32)
    }

    fn input_states(&mut self) -> Result<Array> {
        self.inputs.states.cloned().ok_or_else(|| inconsistent("a draft head has no hidden states to read"))
    }

    fn vector(&mut self, weight: WeightId) -> Result<Array> {
        self.network.weights.derived(weight, Derived::Plus(0.0))?.expand_dims(&[0])
    }

    fn linear(&mut self, x: &Array, linear: &Linear) -> Result<Array> {
        let Linear { weight, bias, inputs: _, outputs: _ } = *linear;
        let weights = &self.network.weights;
        let bias = bias.map(|bias| weights.dense(bias)).transpose()?;
        let x = self.narrow(x)?;
        let y = self.network.compute.linear(&x, weights.get(weight)?, bias)?;
        self.network.adapters.adapt(y, &x, weight, self.slots.rows(x.dim(0)))
    }

    fn head_linear(&mut self, x: &Array, linear: &HeadLinear) -> Result<Array> {
        let HeadLinear { weight, transposed, heads: _, inputs: _, outputs: _ } = *linear;
        let weight = self.network.weights.get(weight)?;
        self.network.compute.head_linear(&self.narrow(x)?, weight, transposed)
    }

    fn norm(&mut self, x: &Array, norm: &Norm) -> Result<Array> {
        let Norm { kind, weight, bias, epsilon, offset, width: _ } = *norm;
        let weights = &self.network.weights;
        let factors = |id: WeightId| match offset {
            0.0 => weights.dense(id).cloned(),
            offset => weights.derived(id, Derived::Plus(offset)),
        };
        let weight = weight.map(factors).transpose()?;
        let bias = bias.map(|bias| weights.dense(bias)).transpose()?;
        // Per-head factors are applied after the norm.
        let fused = weight.as_ref().is_none_or(|weight| weight.rank() == 1);
        let inside = weight.as_ref().filter(|_| fused);
        let mut normed = match kind {
            NormKind::Rms => self.network.compute.rms_norm(x, inside, epsilon)?,
            NormKind::Layer => x.layer_norm(inside, bias.filter(|_| fused), epsilon)?,
        };
        if let Some(weight) = weight.filter(|_| !fused) {
            normed = normed.multiply(&weight)?;
        }
        match bias.filter(|_| !fused || kind == NormKind::Rms) {
            Some(bias) => self.narrow(&normed.add(bias)?),
            None => self.narrow(&normed),
        }
    }

    fn unit_norm(&mut self, x: &Array, epsilon: f32) -> Result<Array> {
        // From the mean instead of the sum.
        let width = x.dim(-1) as f32;
        let normed = self.network.compute.rms_norm(&x.astype(DType::F32)?, None, epsilon / width)?;
        normed.multiply_scalar(width.sqrt().recip())
    }

    fn activate(&mut self, x: &Array, activation: Activation) -> Result<Array> {
        activate(activation, x)
    }

    fn exp(&mut self, x: &Array) -> Result<Array> {
        x.exp()
    }

    fn exp_below(&mut self, x: &Array, epsilon: &Array) -> Result<Array> {
        let x = x.astype(DType::F32)?;
        let zero = Array::scalar(0.0, DType::F32)?;
        let below = x.minimum(epsilon)?.exp()?.add_scalar(-1.0)?.subtract(&x)?;
        x.greater(&zero)?.select(&zero, &below)
    }

    fn clamp(&mut self, x: &Array, least: f32, most: f32) -> Result<Array> {
        clamp(x, least, most)
    }

    fn soft_cap(&mut self, x: &Array, cap: f32) -> Result<Array> {
        compute::soft_cap(x, cap)
    }

    fn scale(&mut self, x: &Array, factor: f32) -> Result<Array> {
        x.multiply_scalar(factor)
    }

    fn offset(&mut self, x: &Array, summand: f32) -> Result<Array> {
        x.add_scalar(summand)
    }

    fn add(&mut self, a: &Array, b: &Array) -> Result<Array> {
        a.add(b)
    }

    fn multiply(&mut self, a: &Array, b: &Array) -> Result<Array> {
        a.multiply(b)
    }

    fn divide(&mut self, a: &Array, b: &Array) -> Result<Array> {
        a.divide(b)
    }

    fn sum(&mut self, x: &Array) -> Result<Array> {
        x.sum(&[-1], true)
    }

    fn mean(&mut self, x: &Array) -> Result<Array> {
        let width = x.dim(-1) as f32;
        x.astype(DType::F32)?.sum(&[-1], true)?.multiply_scalar(width.recip())
    }

    fn sqrt(&mut self, x: &Array) -> Result<Array> {
        x.sqrt()
    }

    fn softmax(&mut self, x: &Array) -> Result<Array> {
        x.astype(DType::F32)?.softmax(-1)
    }

    fn gate(&mut self, gating: Gating, gate: &Array, up: &Array) -> Result<Array> {
        match gating {
            Gating::Activated(activation) => self.network.compute.gated(activation, gate, up),
            Gating::Ungated(activation) => self.activate(gate, activation),
            Gating::Scaled { activation, scale } => {
                self.network.compute.gated(activation, &gate.multiply_scalar(scale)?, up)
            }
            Gating::Sparse { activation, deviations } => {
                let gate = self.exceed(gate, deviations)?;
                self.network.compute.gated(activation, &gate, up)
            }
            Gating::Limited { activation, limit } => {
                let gate = clamp(&self.activate(gate, activation)?, f32::NEG_INFINITY, limit)?;
                clamp(up, -limit, limit)?.multiply(&gate)
            }
            Gating::ClampedSwiglu { alpha, limit, offset } => {
                let gate = clamp(gate, f32::NEG_INFINITY, limit)?;
                let up = clamp(up, -limit, limit)?.add_scalar(offset)?;
                let gate = gate.multiply(&gate.multiply_scalar(alpha)?.sigmoid()?)?;
                up.multiply(&gate)
            }
        }
    }

    fn balance(&mut self, x: &Array, epsilon: f32, iterations: usize) -> Result<Array> {
        let divided = |x: &Array, axis| x.divide(&x.sum(&[axis], true)?.add_scalar(epsilon)?);
        let columns = divided(&x.astype(DType::F32)?, 1)?;
        (1..iterations).try_fold(columns, |x, _| divided(&divided(&x, 2)?, 1))
    }

    fn split_heads(&mut self, x: &Array, heads: usize) -> Result<Array> {
        x.reshape(&[x.dim(0), heads, x.dim(-1) / heads.max(1)])
    }

    fn join_heads(&mut self, x: &Array) -> Result<Array> {
        x.reshape(&[x.dim(0), x.dim(1) * x.dim(2)])
    }

    fn slice(&mut self, x: &Array, start: usize, end: usize) -> Result<Array> {
        x.slice_axis(-1, start, end)
    }

    fn concatenate(&mut self, values: &[Array]) -> Result<Array> {
        concatenate(values, -1)
    }

    fn deinterleave(&mut self, x: &Array, rotary_dim: usize) -> Result<Array> {
        let (tokens, heads, width) = (x.dim(0), x.dim(1), x.dim(2));
        let pairs = x.slice_axis(-1, 0, rotary_dim)?.reshape(&[tokens, heads, rotary_dim / 2, 2])?;
        let halves = pairs.transpose(&[0, 1, 3, 2])?.reshape(&[tokens, heads, rotary_dim])?;
        if rotary_dim == width {
            return Ok(halves);
        }
        concatenate([&halves, &x.slice_axis(-1, rotary_dim, width)?], -1)
    }

    fn interleave(&mut self, x: &Array) -> Result<Array> {
        let (tokens, heads, width) = (x.dim(0), x.dim(1), x.dim(2));
        x.reshape(&[tokens, heads, 2, width / 2])?.transpose(&[0, 1, 3, 2])?.reshape(&[tokens, heads, width])
    }

    fn rotate(&mut self, x: &Array, rope: &Rope) -> Result<Array> {
        self.rotated_by(x, Some(self.network.index_of(rope)?))
    }

    fn scale_by_position(&mut self, x: &Array, scale: &PositionScale) -> Result<Array> {
        let PositionScale { beta, original_context, offset } = *scale;
        let scale = |position: usize| {
            let units = ((position + offset) / original_context.max(1)) as f64;
            (1.0 + f64::from(beta) * units.ln_1p()) as f32
        };
        self.narrow(&x.multiply(&self.by_position(scale)?)?)
    }

    fn select(&mut self, x: &Array) -> Result<Array> {
        match self.wanted {
            Wanted::None | Wanted::All | Wanted::Reordered(_) => Ok(x.clone()),
            Wanted::Some(indices) => x.take(indices, 0),
        }
    }

    fn attention(
        &mut self,
        query: &Array,
        key: &Array,
        value: &Array,
        core: &AttentionCore,
        _reader: Option<&Linear>,
        slot: StateSlot,
    ) -> Result<Array> {
        self.attend(query, key, value, core, slot)
    }

    fn shared_attention(
        &mut self,
        query: &Array,
        core: &AttentionCore,
        _reader: Option<&Linear>,
        slot: StateSlot,
    ) -> Result<Array> {
        self.attend_shared(query, core, slot)
    }

    fn bidirectional_attention(
        &mut self,
        query: &Array,
        key: &Array,
        value: &Array,
        core: &AttentionCore,
        _reader: Option<&Linear>,
    ) -> Result<Array> {
        self.attend_both_ways(query, key, value, core)
    }

    fn latent_attention(
        &mut self,
        query: &Array,
        entry: &Array,
        latent: &LatentAttention,
        slot: StateSlot,
        selected: Option<StateSlot>,
    ) -> Result<Array> {
        self.attend_latent(query, entry, latent, slot, selected)
    }

    fn compress(&mut self, x: &Array, compressor: &Compressor, slot: StateSlot) -> Result<Array> {
        self.compress_rows(x, compressor, slot)
    }

    fn compressed_attention(
        &mut self,
        query: &Array,
        key: &Array,
        entries: &Entries<Array>,
        core: &AttentionCore,
        slot: StateSlot,
    ) -> Result<Array> {
        self.attend_compressed([query, key], entries, core, slot)
    }

    fn select_positions(
        &mut self,
        query: &Array,
        key: &Array,
        weights: &Array,
        selection: (usize, usize),
        slot: StateSlot,
    ) -> Result<()> {
        self.select_by_index([query, key, weights], selection, slot)
    }

    fn convolve(&mut self, x: &Array, convolution: &Convolution, slot: StateSlot) -> Result<Array> {
        self.convolve_rows(x, convolution, slot)
    }

    fn previous(&mut self, x: &Array, slot: StateSlot) -> Result<Array> {
        self.each_row([x], slot, |_, [x], state| {
            let (count, width) = (x.dim(0), x.dim(1));
            let before = state.transpose(&[1, 0])?;
            let kept = x.slice_axis(0, count - 1, count)?.reshape(&[width, 1])?;
            let previous = match count {
                1 => before,
                _ => concatenate([&before, &x.slice_axis(0, 0, count - 1)?], 0)?,
            };
            Ok((previous, kept.contiguous()?))
        })
    }

    fn delta_rule(
        &mut self,
        query: &Array,
        key: &Array,
        value: &Array,
        decay: &Array,
        beta: &Array,
        slot: StateSlot,
    ) -> Result<Array> {
        self.run_delta_rule([query, key, value, decay, beta], slot)
    }

    fn generalized_delta_rule(
        &mut self,
        operands: &DeltaRuleOperands<Array>,
        slot: StateSlot,
    ) -> Result<Array> {
        self.run_generalized_delta_rule(operands, slot)
    }

    fn state_space(
        &mut self,
        x: &Array,
        dt: &Array,
        rate: &Array,
        input: &Array,
        output: &Array,
        slot: StateSlot,
    ) -> Result<Array> {
        self.run_state_space([x, dt, input, output], rate, slot)
    }

    fn keep_groups(&mut self, scores: &Array, groups: usize, kept: usize) -> Result<Array> {
        experts::keep_groups(scores, groups, kept)
    }

    fn sparse_mixer(&mut self, logits: &Array, tolerance: f32) -> Result<(Array, Array)> {
        experts::sparse_mixer(&logits.astype(DType::F32)?, tolerance)
    }

    fn top(&mut self, x: &Array, count: usize) -> Result<Array> {
        experts::top(x, count)
    }

    fn at_most(&mut self, indices: &Array, most: usize) -> Result<Array> {
        indices.minimum(&Array::from_slice(&[most as u32], &[1, 1])?)
    }

    fn pick(&mut self, x: &Array, indices: &Array) -> Result<Array> {
        x.take_along_axis(indices, -1)
    }

    fn dispatch(&mut self, x: &Array, chosen: &Array, _experts: usize) -> Result<(Array, Routing)> {
        experts::dispatch(x, chosen)
    }

    fn expert_linear(&mut self, x: &Array, routing: &Routing, linear: &Linear) -> Result<Array> {
        self.run_expert_linear(x, routing, linear)
    }

    fn weigh(&mut self, x: &Array, routing: &Routing, weights: &Array) -> Result<Array> {
        self.narrow(&experts::weigh(x, routing, weights)?)
    }

    fn combine(&mut self, x: &Array, routing: &Routing, weights: Option<&Array>) -> Result<Array> {
        self.narrow(&experts::combine(x, routing, weights)?)
    }
}

#[cfg(test)]
mod tests;
