//! Mixture of experts: routing, dispatch and combination.

use mlxcel_stablehlo::{Comparison, ElementType, Result, TensorType, Value};

use crate::layers;

use super::GraphOps;

/// Which slot holds which choice of which token.
pub(crate) struct Routing<'f> {
    pub(super) groups: layers::ExpertGroups<'f>,
    /// Tokens, and choices of each.
    pub(super) sizes: [usize; 2],
}

impl<'f> GraphOps<'_, '_, 'f> {
    /// Scores with those outside of the best groups at −∞.
    pub(super) fn mask_groups(&mut self, scores: Value<'f>, groups: usize, kept: usize) -> Result<Value<'f>> {
        let [tokens, experts] = self.b.shape(scores)[..] else { return Ok(scores) };
        let size = experts / groups;
        let grouped = self.b.reshape(scores, &[tokens * groups, size])?;
        let (best, _) = layers::top_k(self.b, grouped, size.min(2))?;
        let sums = self.b.sum(best, &[1])?;
        let sums = self.b.reshape(sums, &[tokens, groups])?;
        let (_, chosen) = layers::top_k(self.b, sums, kept)?;
        // Entry (t, g, j): is the j-th best group g?
        let shape = [tokens, groups, kept];
        let group = self.b.iota(TensorType::new(ElementType::I32, shape), 1)?;
        let chosen = self.b.expand(chosen, &shape, &[1])?;
        let same = self.b.compare(group, chosen, Comparison::Equal)?;
        let same = self.b.convert(same, ElementType::I32)?;
        let times = self.b.sum(same, &[2])?;
        let none = self.b.splat(ElementType::I32, 0.0, &[tokens, groups])?;
        let keeps = self.b.compare(times, none, Comparison::Greater)?;
        let keeps = self.b.expand(keeps, &[tokens, groups, size], &[2])?;
        let keeps = self.b.reshape(keeps, &[tokens, experts])?;
        let out = self.b.splat(ElementType::F32, f64::NEG_INFINITY, &[tokens, experts])?;
        self.b.select(keeps, scores, out)
    }

    /// The two largest of each row of logits, and the weight of each among those that are close to it.
    pub(super) fn mix_sparsely(
        &mut self,
        logits: Value<'f>,
        tolerance: f32,
    ) -> Result<(Value<'f>, Value<'f>)> {
        let (best, indices) = layers::top_k(self.b, logits, 2)?;
        let shape = self.b.shape(logits);
        let tokens = shape[0];
        let magnitudes = self.b.abs(logits)?;
        let tolerance = self.b.splat(ElementType::F32, f64::from(tolerance), &shape)?;
        let zero = self.b.splat(ElementType::F32, 0.0, &shape)?;
        let one = self.b.splat(ElementType::F32, 1.0, &[tokens])?;
        let places = self.b.iota(TensorType::new(ElementType::I32, shape.clone()), 1)?;
        let mut weights = Vec::with_capacity(2);
        for place in 0..2 {
            let most = self.b.slice(best, &[0, place], &[tokens, place + 1])?;
            let most = self.b.reshape(most, &[tokens])?;
            let most = self.b.expand(most, &shape, &[1])?;
            let below = self.b.subtract(most, logits)?;
            let unit = self.b.maximum(magnitudes, most)?;
            let distance = self.b.divide(below, unit)?;
            let far = self.b.compare(distance, tolerance, Comparison::Greater)?;
            let above = self.b.subtract(logits, most)?;
            let power = self.b.exponential(above)?;
            let mut power = self.b.select(far, zero, power)?;
            if place == 1 {
                let first = self.b.slice(indices, &[0, 0], &[tokens, 1])?;
                let first = self.b.reshape(first, &[tokens])?;
                let first = self.b.expand(first, &shape, &[1])?;
                let taken = self.b.compare(places, first, Comparison::Equal)?;
                power = self.b.select(taken, zero, power)?;
            }
            let sum = self.b.sum(power, &[1])?;
            let weight = self.b.divide(one, sum)?;
            weights.push(self.b.reshape(weight, &[tokens, 1])?);
        }
        let weights = self.b.concatenate(&weights, 1)?;
        Ok((indices, weights))
    }

    /// Of each row of `[tokens, n]` the elements at `[tokens, count]` indices.
    pub(super) fn pick_elements(&mut self, x: Value<'f>, indices: Value<'f>) -> Result<Value<'f>> {
        let (&[tokens, width], &[_, count]) = (&self.b.shape(x)[..], &self.b.shape(indices)[..]) else {
            return Ok(x);
        };
        let shape = [tokens, count, width];
        let places = self.b.iota(TensorType::new(ElementType::I32, shape), 2)?;
        let indices = self.b.expand(indices, &shape, &[2])?;
        let here = self.b.compare(places, indices, Comparison::Equal)?;
        let x = self.b.expand(x, &shape, &[1])?;
        let zero = self.b.splat(ElementType::F32, 0.0, &shape)?;
        let found = self.b.select(here, x, zero)?;
        self.b.sum(found, &[2])
    }

    /// Tokens in blocks that have one expert each: `[blocks, rows, width]`.
    pub(super) fn dispatch_tokens(
        &mut self,
        x: Value<'f>,
        chosen: Value<'f>,
        experts: usize,
    ) -> Result<(Value<'f>, Routing<'f>)> {
        let [tokens, choices] = self.b.shape(chosen)[..] else {
            unreachable!("routing needs one row per token");
        };
        let block = layers::expert_block(tokens, choices, experts);
        let groups = layers::group_by_expert(self.b, chosen, experts, block)?;
        let routing = Routing { groups, sizes: [tokens, choices] };
        let width = self.b.shape(x)[1];
        if tokens == 1 {
            // The one token is that of all blocks.
            return Ok((self.b.reshape(x, &[1, 1, width])?, routing));
        }
        let slots = self.b.shape(groups.pairs)[0];
        let divisor = self.b.splat(ElementType::I32, choices as f64, &[slots])?;
        let token = self.b.divide(groups.pairs, divisor)?;
        let rows = self.b.take(x, token)?;
        Ok((self.b.reshape(rows, &[slots / block, block, width])?, routing))
    }

    /// Dispatched tokens times the weights of the pairs in their slots.
    pub(super) fn weigh_tokens(
        &mut self,
        x: Value<'f>,
        routing: &Routing<'f>,
        weights: Value<'f>,
    ) -> Result<Value<'f>> {
        let [tokens, choices] = routing.sizes;
        let [blocks, rows, width] = self.b.shape(x)[..] else {
            unreachable!("dispatched tokens must be in blocks of rows");
        };
        let flat = self.b.reshape(weights, &[tokens * choices, 1])?;
        // The one token stands in all blocks, one a choice.
        let (shape, of_slots) = match tokens {
            1 => ([choices, 1, width], flat),
            _ => ([blocks, rows, width], self.b.take(flat, routing.groups.pairs)?),
        };
        let of_slots = self.b.reshape(of_slots, &shape[..2])?;
        let of_slots = self.b.expand(of_slots, &shape, &[2])?;
        let x = if tokens == 1 {
            let x = self.b.reshape(x, &[width])?;
            self.b.expand(x, &shape, &[0, 1])?
        } else {
            x
        };
        self.b.multiply(x, of_slots)
    }

    /// The sum of each token's results, weighted if there are weights.
    pub(super) fn combine_results(
        &mut self,
        x: Value<'f>,
        routing: &Routing<'f>,
        weights: Option<Value<'f>>,
    ) -> Result<Value<'f>> {
        let [tokens, choices] = routing.sizes;
        let [blocks, rows, width] = self.b.shape(x)[..] else {
            unreachable!("expert results must be in blocks of rows");
        };
        let flat = self.b.reshape(x, &[blocks * rows, width])?;
        // Blocks of one row stand in the order of pairs.
        let pairs = if rows == 1 { flat } else { self.b.take(flat, routing.groups.slots)? };
        let shape = [tokens, choices, width];
        let pairs = self.b.reshape(pairs, &shape)?;
        let weighted = match weights {
            Some(weights) => {
                let weights = self.b.expand(weights, &shape, &[2])?;
                self.b.multiply(pairs, weights)?
            }
            None => pairs,
        };
        self.b.sum(weighted, &[1])
    }
}
