//! Mixers that read the token before.

use super::mixers::{narrow, project};
use super::{DeltaRuleOperands, Ops, run_mlp};
use crate::decoder::{Activation, GeneralizedDeltaRule, ShiftedMlp, ShiftedProjection, StateSlot, WeightId};

/// Tokens, and what those before them differ by.
struct Shift<V> {
    x: V,
    change: V,
}

impl<V: Clone> Shift<V> {
    fn new<O: Ops<Value = V>>(x: &V, slot: StateSlot, ops: &mut O) -> Result<Self, O::Error> {
        let before = ops.previous(x, slot)?;
        let less = ops.scale(x, -1.0)?;
        Ok(Self { x: x.clone(), change: ops.add(&before, &less)? })
    }

    fn mixed<O: Ops<Value = V>>(&self, mix: WeightId, ops: &mut O) -> Result<V, O::Error> {
        let mix = ops.vector(mix)?;
        let part = ops.multiply(&self.change, &mix)?;
        ops.add(&self.x, &part)
    }

    fn project<O: Ops<Value = V>>(&self, shifted: &ShiftedProjection, ops: &mut O) -> Result<V, O::Error> {
        let ShiftedProjection { mix, projection } = shifted;
        let mixed = self.mixed(*mix, ops)?;
        project(projection, &mixed, ops)
    }
}

/// What `mixer` makes of its input, as [`mix`](super::mixers::mix) does.
pub(super) fn mlp<O: Ops>(
    mixer: &ShiftedMlp,
    x: &O::Value,
    slot: StateSlot,
    last: bool,
    ops: &mut O,
) -> Result<O::Value, O::Error> {
    let ShiftedMlp { width: _, mix, mlp } = mixer;
    let mixed = Shift::new(x, slot, ops)?.mixed(*mix, ops)?;
    let mixed = narrow(mixed, last, ops)?;
    run_mlp(mlp, &mixed, ops)
}

/// What `mixer` makes of its input, as [`mix`](super::mixers::mix) does.
pub(super) fn delta_rule<O: Ops>(
    mixer: &GeneralizedDeltaRule,
    x: &O::Value,
    [before, state]: [StateSlot; 2],
    last: bool,
    first_values: &mut Option<O::Value>,
    ops: &mut O,
) -> Result<O::Value, O::Error> {
    /// What is added to the square of a key's length. Its root is the least length that PyTorch's `normalize`
    /// divides by.
    const EPSILON: f32 = 1e-24;
    let GeneralizedDeltaRule {
        width: _,
        heads,
        head_dim: _,
        query,
        key,
        value,
        value_mix,
        decay,
        decay_bound,
        rate,
        gate,
        removal_scale,
        rate_scale,
        bonus,
        norm,
        output,
    } = mixer;
    let shift = Shift::new(x, before, ops)?;
    let query = shift.project(query, ops)?;
    let key = shift.project(key, ops)?;
    let read = shift.mixed(value.mix, ops)?;
    let mut value = project(&value.projection, &read, ops)?;
    match (value_mix, &*first_values) {
        (Some(mix), Some(first)) => {
            let part = project(mix, &read, ops)?;
            let part = ops.activate(&part, Activation::Sigmoid)?;
            let less = ops.scale(&value, -1.0)?;
            let change = ops.add(first, &less)?;
            let change = ops.multiply(&change, &part)?;
            value = ops.add(&value, &change)?;
        }
        (None, None) => *first_values = Some(value.clone()),
        // Only the first mixer has no mix.
        (Some(_), None) | (None, Some(_)) => {}
    }
    let decay = shift.project(decay, ops)?;
    let decay = ops.activate(&decay, Activation::Sigmoid)?;
    let decay = ops.scale(&decay, *decay_bound)?;
    let rate = shift.project(rate, ops)?;
    let rate = ops.activate(&rate, Activation::Sigmoid)?;

    let factors = ops.vector(*removal_scale)?;
    let removal = ops.multiply(&key, &factors)?;
    let removal = ops.split_heads(&removal, *heads)?;
    let removal = ops.unit_norm(&removal, EPSILON)?;
    let factors = ops.vector(*rate_scale)?;
    let less = ops.offset(&rate, -1.0)?;
    let factors = ops.multiply(&less, &factors)?;
    let factors = ops.offset(&factors, 1.0)?;
    let key = ops.multiply(&key, &factors)?;
    let [query, key, value, decay, rate] =
        [query, key, value, decay, rate].map(|x| ops.split_heads(&x, *heads));
    let (query, key, value) = (query?, key?, value?);
    let rewrite = ops.multiply(&removal, &rate?)?;
    let operands = DeltaRuleOperands {
        query: query.clone(),
        key: key.clone(),
        value: value.clone(),
        decay: decay?,
        removal: ops.scale(&removal, -1.0)?,
        rewrite,
    };
    let mixed = ops.generalized_delta_rule(&operands, state)?;

    let mixed = narrow(mixed, last, ops)?;
    let mixed = ops.norm(&mixed, norm)?;
    let bonus = ops.vector(*bonus)?;
    let bonus = ops.split_heads(&bonus, *heads)?;
    let bonus = ops.multiply(&key, &bonus)?;
    let bonus = ops.multiply(&bonus, &query)?;
    let bonus = ops.sum(&bonus)?;
    let own = ops.multiply(&value, &bonus)?;
    let own = narrow(own, last, ops)?;
    let mixed = ops.add(&mixed, &own)?;
    let mixed = ops.join_heads(&mixed)?;
    let gate = shift.project(gate, ops)?;
    let gate = narrow(gate, last, ops)?;
    let gated = ops.multiply(&mixed, &gate)?;
    ops.linear(&gated, output)
}
