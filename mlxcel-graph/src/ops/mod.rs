//! The walk's operations as nodes of a graph.

mod adapters;
mod elementwise;
mod experts;
mod mixers;
mod pass;

use std::collections::HashMap;

use mlxcel_models::walk::{DeltaRuleOperands, Entries, Ops};
use mlxcel_models::{
    Activation, AttentionCore, Compressor, Convolution, HeadLinear, LatentAttention, Linear, Norm,
    PositionScale, Rope, StateSlot, WeightId,
};
use mlxcel_stablehlo::{
    Builder, Comparison, DotDimensions, ElementType, Error, ErrorKind, Literal, Result, TensorType, Value,
};

pub(crate) use adapters::Adapters;
pub(crate) use experts::Routing;
pub(crate) use pass::PassValues;
use pass::given;

use crate::layers;
use crate::weights::Weights;

/// A decoder's operations being written into a function.
pub(crate) struct GraphOps<'a, 'b, 'f> {
    pub(crate) b: &'b mut Builder<'f>,
    pub(crate) weights: Weights<'a, 'f>,
    pub(crate) adapters: Adapters<'f>,
    pub(crate) pass: PassValues<'a, 'f>,
    /// For each group of states, that of each row.
    pub(crate) states: Vec<Vec<Value<'f>>>,
    /// The keys and values that the pass has written into the caches at a slot.
    pub(crate) written: HashMap<StateSlot, [Value<'f>; 2]>,
    /// For the slots of index keys, the positions that the pass has selected by them: a mask for each row, or
    /// none if all are.
    pub(crate) selected: HashMap<StateSlot, Vec<Value<'f>>>,
}

impl<'f> GraphOps<'_, '_, 'f> {
    fn tokens(&self) -> usize {
        self.pass.rows.iter().sum()
    }

    /// The position of each token: `[tokens]` i32.
    fn token_positions(&mut self) -> Result<Value<'f>> {
        if let Some(texts) = self.pass.texts {
            let place = self.b.iota(TensorType::new(ElementType::I32, [self.tokens()]), 0)?;
            return self.b.subtract(place, texts.firsts);
        }
        let mut parts = Vec::with_capacity(self.pass.rows.len());
        for (index, &tokens) in self.pass.rows.iter().enumerate() {
            let first = self.b.slice(self.pass.positions, &[index], &[index + 1])?;
            let first = self.b.broadcast_in_dim(first, &[tokens], &[0])?;
            let offset = self.b.iota(TensorType::new(ElementType::I32, [tokens]), 0)?;
            parts.push(self.b.add(first, offset)?);
        }
        layers::join_rows(self.b, &parts)
    }

    /// The number of tokens of each row without padding: `[rows]` i32.
    fn counts(&mut self) -> Result<Value<'f>> {
        let mut start = 0;
        let mut before = Vec::with_capacity(self.pass.rows.len());
        for tokens in self.pass.rows {
            before.push(start - 1);
            start += *tokens as i32;
        }
        let before = Literal::new([before.len()], &before).ok_or_else(|| {
            Error::new(ErrorKind::Structure, "counts", "there must be a count for each row")
        })?;
        let before = self.b.constant(before)?;
        self.b.subtract(self.pass.last, before)
    }

    /// The table of a rotary embedding that is among the network's.
    fn rotary(&self, rope: &Rope) -> Result<(Value<'f>, Value<'f>)> {
        let found = self.pass.rotary.iter().find(|(known, _)| *known == rope);
        found.map(|(_, table)| *table).ok_or_else(|| {
            let detail = "the layer uses a rotary embedding that the decoder does not list";
            Error::new(ErrorKind::Name, "rope", detail)
        })
    }
}

impl<'f> Ops for GraphOps<'_, '_, 'f> {
    type Value = Value<'f>;
    type Routing = Routing<'f>;
    type Error = Error;

    fn embed(&mut self, table: WeightId) -> Result<Value<'f>> {
        self.weights.embedding(self.b, table, self.pass.tokens)
    }

    fn embed_within(&mut self, table: WeightId, rows: usize) -> Result<Value<'f>> {
        let tokens = self.pass.tokens;
        let shape = self.b.shape(tokens);
        let rows = self.b.splat(ElementType::I32, rows as f64, &shape)?;
        let has_row = self.b.compare(tokens, rows, Comparison::Less)?;
        let first = self.b.splat(ElementType::I32, 0.0, &shape)?;
        let tokens = self.b.select(has_row, tokens, first)?;
        self.weights.embedding(self.b, table, tokens)
    }

    fn embed_positions(&mut self, table: WeightId, offset: usize) -> Result<Value<'f>> {
        let positions = self.token_positions()?;
        let offset = self.b.splat(ElementType::I32, offset as f64, &[self.tokens()])?;
        let rows = self.b.add(positions, offset)?;
        self.weights.embedding(self.b, table, rows)
    }

    fn embed_types(&mut self, table: WeightId) -> Result<Value<'f>> {
        let types = given(self.pass.types, "embed_types")?;
        self.weights.embedding(self.b, table, types)
    }

    fn look_up(&mut self, table: WeightId) -> Result<Value<'f>> {
        let rows = self.weights.embedding(self.b, table, self.pass.tokens)?;
        self.b.convert(rows, ElementType::I32)
    }

    fn input_states(&mut self) -> Result<Value<'f>> {
        given(self.pass.input_states, "input_states")
    }

    fn vector(&mut self, weight: WeightId) -> Result<Value<'f>> {
        let values = self.weights.vector(self.b, weight)?;
        let mut shape = self.b.shape(values);
        shape.insert(0, 1);
        self.b.reshape(values, &shape)
    }

    fn linear(&mut self, x: &Value<'f>, linear: &Linear) -> Result<Value<'f>> {
        let y = self.weights.linear(self.b, *x, linear)?;
        self.adapt(y, *x, linear)
    }

    fn head_linear(&mut self, x: &Value<'f>, linear: &HeadLinear) -> Result<Value<'f>> {
        let HeadLinear { weight, transposed, heads: _, inputs: _, outputs: _ } = *linear;
        let (matrices, operand) = self.weights.matrices(self.b, weight)?;
        let x = self.b.convert(*x, operand)?;
        let dimensions = DotDimensions {
            lhs_batch: vec![1],
            rhs_batch: vec![0],
            lhs_contracting: vec![2],
            rhs_contracting: vec![if transposed { 1 } else { 2 }],
        };
        let products = self.b.dot_general(x, matrices, dimensions, ElementType::F32)?;
        self.b.transpose(products, &[1, 0, 2])
    }

    fn norm(&mut self, x: &Value<'f>, norm: &Norm) -> Result<Value<'f>> {
        self.normalise(*x, norm)
    }

    fn unit_norm(&mut self, x: &Value<'f>, epsilon: f32) -> Result<Value<'f>> {
        let squares = self.b.multiply(*x, *x)?;
        let sum = Ops::sum(self, &squares)?;
        let sum = self.offset(&sum, epsilon)?;
        let factor = self.b.rsqrt(sum)?;
        self.multiply(x, &factor)
    }

    fn activate(&mut self, x: &Value<'f>, activation: Activation) -> Result<Value<'f>> {
        layers::activate(self.b, activation, *x)
    }

    fn exp(&mut self, x: &Value<'f>) -> Result<Value<'f>> {
        self.b.exponential(*x)
    }

    fn exp_below(&mut self, x: &Value<'f>, epsilon: &Value<'f>) -> Result<Value<'f>> {
        let (x, epsilon) = self.aligned(*x, *epsilon)?;
        let least = self.b.minimum(x, epsilon)?;
        let power = self.b.exponential(least)?;
        let power = self.offset(&power, -1.0)?;
        let below = self.b.subtract(power, x)?;
        let zero = self.b.splat(ElementType::F32, 0.0, &self.b.shape(x))?;
        let is_above = self.b.compare(x, zero, Comparison::Greater)?;
        self.b.select(is_above, zero, below)
    }

    fn clamp(&mut self, x: &Value<'f>, least: f32, most: f32) -> Result<Value<'f>> {
        let shape = self.b.shape(*x);
        let mut y = *x;
        if least > f32::NEG_INFINITY {
            let least = self.b.splat(ElementType::F32, f64::from(least), &shape)?;
            y = self.b.maximum(y, least)?;
        }
        if most < f32::INFINITY {
            let most = self.b.splat(ElementType::F32, f64::from(most), &shape)?;
            y = self.b.minimum(y, most)?;
        }
        Ok(y)
    }

    fn soft_cap(&mut self, x: &Value<'f>, cap: f32) -> Result<Value<'f>> {
        let cap = self.b.splat(ElementType::F32, f64::from(cap), &self.b.shape(*x))?;
        let part = self.b.divide(*x, cap)?;
        let bent = self.b.tanh(part)?;
        self.b.multiply(bent, cap)
    }

    fn scale(&mut self, x: &Value<'f>, factor: f32) -> Result<Value<'f>> {
        let factor = self.b.splat(ElementType::F32, f64::from(factor), &self.b.shape(*x))?;
        self.b.multiply(*x, factor)
    }

    fn offset(&mut self, x: &Value<'f>, summand: f32) -> Result<Value<'f>> {
        let summand = self.b.splat(ElementType::F32, f64::from(summand), &self.b.shape(*x))?;
        self.b.add(*x, summand)
    }

    fn add(&mut self, a: &Value<'f>, b: &Value<'f>) -> Result<Value<'f>> {
        let (a, b) = self.aligned(*a, *b)?;
        self.b.add(a, b)
    }

    fn multiply(&mut self, a: &Value<'f>, b: &Value<'f>) -> Result<Value<'f>> {
        let (a, b) = self.aligned(*a, *b)?;
        self.b.multiply(a, b)
    }

    fn divide(&mut self, a: &Value<'f>, b: &Value<'f>) -> Result<Value<'f>> {
        let (a, b) = self.aligned(*a, *b)?;
        self.b.divide(a, b)
    }

    fn sum(&mut self, x: &Value<'f>) -> Result<Value<'f>> {
        let mut shape = self.b.shape(*x);
        let last = shape.len() - 1;
        let sum = self.b.sum(*x, &[last])?;
        shape[last] = 1;
        self.b.reshape(sum, &shape)
    }

    fn mean(&mut self, x: &Value<'f>) -> Result<Value<'f>> {
        let mut shape = self.b.shape(*x);
        let last = shape.len() - 1;
        let mean = self.mean_of_last(*x)?;
        shape[last] = 1;
        self.b.reshape(mean, &shape)
    }

    fn sqrt(&mut self, x: &Value<'f>) -> Result<Value<'f>> {
        self.b.sqrt(*x)
    }

    fn softmax(&mut self, x: &Value<'f>) -> Result<Value<'f>> {
        let last = self.b.shape(*x).len() - 1;
        self.b.softmax(*x, last)
    }

    fn balance(&mut self, x: &Value<'f>, epsilon: f32, iterations: usize) -> Result<Value<'f>> {
        layers::balance(self.b, *x, epsilon, iterations)
    }

    fn split_heads(&mut self, x: &Value<'f>, heads: usize) -> Result<Value<'f>> {
        let shape = self.b.shape(*x);
        self.b.reshape(*x, &[shape[0], heads, shape[1] / heads])
    }

    fn join_heads(&mut self, x: &Value<'f>) -> Result<Value<'f>> {
        let shape = self.b.shape(*x);
        self.b.reshape(*x, &[shape[0], shape[1] * shape[2]])
    }

    fn slice(&mut self, x: &Value<'f>, start: usize, end: usize) -> Result<Value<'f>> {
        let mut limit = self.b.shape(*x);
        let mut from = vec![0; limit.len()];
        let last = limit.len() - 1;
        (from[last], limit[last]) = (start, end);
        self.b.slice(*x, &from, &limit)
    }

    fn concatenate(&mut self, values: &[Value<'f>]) -> Result<Value<'f>> {
        let rank = values.first().map_or(1, |&value| self.b.shape(value).len());
        self.b.concatenate(values, rank - 1)
    }

    fn deinterleave(&mut self, x: &Value<'f>, rotary_dim: usize) -> Result<Value<'f>> {
        layers::deinterleave(self.b, *x, rotary_dim)
    }

    fn interleave(&mut self, x: &Value<'f>) -> Result<Value<'f>> {
        layers::interleave(self.b, *x)
    }

    fn rotate(&mut self, x: &Value<'f>, rope: &Rope) -> Result<Value<'f>> {
        let (cos, sin) = self.rotary(rope)?;
        layers::rope(self.b, *x, cos, sin)
    }

    fn scale_by_position(&mut self, x: &Value<'f>, scale: &PositionScale) -> Result<Value<'f>> {
        let PositionScale { beta, original_context, offset } = *scale;
        let mut positions = self.token_positions()?;
        if offset > 0 {
            let offset = self.b.splat(ElementType::I32, offset as f64, &[self.tokens()])?;
            positions = self.b.add(positions, offset)?;
        }
        let unit = self.b.splat(ElementType::I32, original_context as f64, &[self.tokens()])?;
        let units = self.b.divide(positions, unit)?;
        let units = self.b.convert(units, ElementType::F32)?;
        let log = self.b.log_plus_one(units)?;
        let log = Ops::scale(self, &log, beta)?;
        let factor = self.offset(&log, 1.0)?;
        let shape = self.b.shape(*x);
        let factor = self.b.broadcast_in_dim(factor, &shape, &[0])?;
        self.b.multiply(*x, factor)
    }

    fn select(&mut self, x: &Value<'f>) -> Result<Value<'f>> {
        match self.pass.wanted {
            Some(wanted) => self.take_rows(*x, wanted),
            None => Ok(*x),
        }
    }

    fn attention(
        &mut self,
        query: &Value<'f>,
        key: &Value<'f>,
        value: &Value<'f>,
        core: &AttentionCore,
        reader: Option<&Linear>,
        slot: StateSlot,
    ) -> Result<Value<'f>> {
        let out = reader.map_or(ElementType::F32, |reader| self.weights.operand_of(reader.weight));
        self.written.insert(slot, [*key, *value]);
        self.attend([*query, *key, *value], core, out, slot)
    }

    fn shared_attention(
        &mut self,
        query: &Value<'f>,
        core: &AttentionCore,
        reader: Option<&Linear>,
        slot: StateSlot,
    ) -> Result<Value<'f>> {
        let out = reader.map_or(ElementType::F32, |reader| self.weights.operand_of(reader.weight));
        // The same keys and values go to the same places once more, which leaves the cache as it is. A ring
        // has room for a pass behind its window, so that no other layer has overwritten what the
        // first tokens see.
        let Some([key, value]) = self.written.get(&slot).copied() else {
            let message = "no attention before this one has written the cache that it reads";
            return Err(Error::new(ErrorKind::Structure, "shared_attention", message));
        };
        self.attend([*query, key, value], core, out, slot)
    }

    fn bidirectional_attention(
        &mut self,
        query: &Value<'f>,
        key: &Value<'f>,
        value: &Value<'f>,
        core: &AttentionCore,
        reader: Option<&Linear>,
    ) -> Result<Value<'f>> {
        let out = reader.map_or(ElementType::F32, |reader| self.weights.operand_of(reader.weight));
        self.attend_both_ways([*query, *key, *value], core, out)
    }

    fn latent_attention(
        &mut self,
        query: &Value<'f>,
        entry: &Value<'f>,
        latent: &LatentAttention,
        slot: StateSlot,
        selected: Option<StateSlot>,
    ) -> Result<Value<'f>> {
        self.attend_latent(*query, *entry, latent, slot, selected)
    }

    fn compress(&mut self, x: &Value<'f>, compressor: &Compressor, slot: StateSlot) -> Result<Value<'f>> {
        self.compress_windows(*x, compressor, slot)
    }

    fn compressed_attention(
        &mut self,
        query: &Value<'f>,
        key: &Value<'f>,
        entries: &Entries<Value<'f>>,
        core: &AttentionCore,
        slot: StateSlot,
    ) -> Result<Value<'f>> {
        self.attend_compressed([*query, *key], entries, core, slot)
    }

    fn select_positions(
        &mut self,
        query: &Value<'f>,
        key: &Value<'f>,
        weights: &Value<'f>,
        selection: (usize, usize),
        slot: StateSlot,
    ) -> Result<()> {
        self.select_by_index([*query, *key, *weights], selection, slot)
    }

    fn convolve(&mut self, x: &Value<'f>, convolution: &Convolution, slot: StateSlot) -> Result<Value<'f>> {
        self.causal_convolution(*x, convolution, slot)
    }

    fn previous(&mut self, x: &Value<'f>, slot: StateSlot) -> Result<Value<'f>> {
        self.recur(slot, |b, rows| layers::previous_tokens(b, *x, rows))
    }

    fn delta_rule(
        &mut self,
        query: &Value<'f>,
        key: &Value<'f>,
        value: &Value<'f>,
        decay: &Value<'f>,
        beta: &Value<'f>,
        slot: StateSlot,
    ) -> Result<Value<'f>> {
        let operands = [*query, *key, *value, *decay, *beta];
        self.recur(slot, |b, rows| layers::gated_delta_rule(b, operands, rows))
    }

    fn generalized_delta_rule(
        &mut self,
        operands: &DeltaRuleOperands<Value<'f>>,
        slot: StateSlot,
    ) -> Result<Value<'f>> {
        let &DeltaRuleOperands { query, key, value, decay, removal, rewrite } = operands;
        let operands = [query, key, value, decay, removal, rewrite];
        self.recur(slot, |b, rows| layers::generalized_delta_rule(b, operands, rows))
    }

    fn state_space(
        &mut self,
        x: &Value<'f>,
        dt: &Value<'f>,
        rate: &Value<'f>,
        input: &Value<'f>,
        output: &Value<'f>,
        slot: StateSlot,
    ) -> Result<Value<'f>> {
        let operands = [*x, *dt, *rate, *input, *output];
        self.recur(slot, |b, rows| layers::selective_state_space(b, operands, rows))
    }

    fn keep_groups(&mut self, scores: &Value<'f>, groups: usize, kept: usize) -> Result<Value<'f>> {
        self.mask_groups(*scores, groups, kept)
    }

    fn sparse_mixer(&mut self, logits: &Value<'f>, tolerance: f32) -> Result<(Value<'f>, Value<'f>)> {
        self.mix_sparsely(*logits, tolerance)
    }

    fn top(&mut self, x: &Value<'f>, count: usize) -> Result<Value<'f>> {
        layers::top_k(self.b, *x, count).map(|(_, indices)| indices)
    }

    fn at_most(&mut self, indices: &Value<'f>, most: usize) -> Result<Value<'f>> {
        let most = self.b.splat(ElementType::I32, most as f64, &self.b.shape(*indices))?;
        self.b.minimum(*indices, most)
    }

    fn pick(&mut self, x: &Value<'f>, indices: &Value<'f>) -> Result<Value<'f>> {
        self.pick_elements(*x, *indices)
    }

    fn dispatch(
        &mut self,
        x: &Value<'f>,
        chosen: &Value<'f>,
        experts: usize,
    ) -> Result<(Value<'f>, Routing<'f>)> {
        self.dispatch_tokens(*x, *chosen, experts)
    }

    fn expert_linear(&mut self, x: &Value<'f>, routing: &Routing<'f>, linear: &Linear) -> Result<Value<'f>> {
        self.weights.expert_linear(self.b, *x, routing.groups.experts, linear)
    }

    fn weigh(&mut self, x: &Value<'f>, routing: &Routing<'f>, weights: &Value<'f>) -> Result<Value<'f>> {
        self.weigh_tokens(*x, routing, *weights)
    }

    fn combine(
        &mut self,
        x: &Value<'f>,
        routing: &Routing<'f>,
        weights: Option<&Value<'f>>,
    ) -> Result<Value<'f>> {
        self.combine_results(*x, routing, weights.copied())
    }
}
