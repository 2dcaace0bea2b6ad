//! Mixtures of experts.

use super::{Ops, normed, run_mlp, scaled};
use crate::decoder::{Activation, ExpertGroups, Experts, Router, Scoring, SharedExpert};

/// What `experts` make of `x`, which has only the wanted tokens if it `is_narrow`.
pub(super) fn run<O: Ops>(
    experts: &Experts,
    x: &O::Value,
    is_narrow: bool,
    ops: &mut O,
) -> Result<O::Value, O::Error> {
    let Experts {
        count,
        identities,
        chosen,
        router,
        norm_before,
        gating,
        gate,
        up,
        down,
        norm_after,
        shared,
        output_bias,
    } = experts;
    let mut choice = route(router, *chosen, x, is_narrow, ops)?;
    let passed =
        if *identities > 0 { Some(split_identities(&mut choice, [*count, *identities], ops)?) } else { None };
    let Choice { logits: _, indices, weights } = choice;
    let read = normed(norm_before.as_ref(), x, ops)?;
    let (mut dispatched, routing) = ops.dispatch(&read, &indices, *count)?;
    if router.weighs_inputs {
        dispatched = ops.weigh(&dispatched, &routing, &weights)?;
    }
    let gated = ops.expert_linear(&dispatched, &routing, gate)?;
    let up = if up == gate { gated.clone() } else { ops.expert_linear(&dispatched, &routing, up)? };
    let gated = ops.gate(*gating, &gated, &up)?;
    let results = ops.expert_linear(&gated, &routing, down)?;
    let weights = (!router.weighs_inputs).then_some(&weights);
    let mut sum = ops.combine(&results, &routing, weights)?;
    if let Some(passed) = passed {
        let passed = ops.multiply(&read, &passed)?;
        sum = ops.add(&sum, &passed)?;
    }
    let mut sum = normed(norm_after.as_ref(), &sum, ops)?;
    if let Some(SharedExpert { norm_before, mlp, norm_after, gate }) = shared {
        let read = normed(norm_before.as_ref(), x, ops)?;
        let own = run_mlp(mlp, &read, ops)?;
        let mut own = normed(norm_after.as_ref(), &own, ops)?;
        if let Some(gate) = gate {
            let gate = ops.linear(x, gate)?;
            let gate = ops.activate(&gate, Activation::Sigmoid)?;
            own = ops.multiply(&own, &gate)?;
        }
        sum = ops.add(&sum, &own)?;
    }
    if let Some(bias) = output_bias {
        let bias = ops.vector(*bias)?;
        sum = ops.add(&sum, &bias)?;
    }
    Ok(sum)
}

/// What a router says of each token.
struct Choice<V> {
    /// `[tokens, experts]`, identities included.
    logits: V,
    /// The chosen experts, `[tokens, chosen]` integers.
    indices: V,
    /// Their weights, `[tokens, chosen]`.
    weights: V,
}

/// The sum of the weights of a token's experts from `count` on (`[tokens, 1]`), whose result is what they
/// read. In the choice others take their places, with a weight of zero.
fn split_identities<O: Ops>(
    choice: &mut Choice<O::Value>,
    [count, identities]: [usize; 2],
    ops: &mut O,
) -> Result<O::Value, O::Error> {
    let Choice { logits, indices, weights } = choice;
    let zeros = ops.scale(logits, 0.0)?;
    let ones = ops.offset(&zeros, 1.0)?;
    let is_own = ops.slice(&zeros, 0, count)?;
    let is_identity = ops.slice(&ones, count, count + identities)?;
    let is_identity = ops.concatenate(&[is_own, is_identity])?;
    let is_identity = ops.pick(&is_identity, indices)?;
    let passed = ops.multiply(weights, &is_identity)?;
    let less = ops.scale(&passed, -1.0)?;
    *weights = ops.add(weights, &less)?;
    *indices = ops.at_most(indices, count.saturating_sub(1))?;
    ops.sum(&passed)
}

/// The experts of each token and their weights.
fn route<O: Ops>(
    router: &Router,
    chosen: usize,
    x: &O::Value,
    is_narrow: bool,
    ops: &mut O,
) -> Result<Choice<O::Value>, O::Error> {
    let Router {
        norm,
        input_scale,
        projection,
        scoring,
        selection_bias,
        ranks_logits,
        by_token,
        groups,
        normalised,
        normaliser,
        scale,
        weighs_inputs: _,
        expert_scales,
    } = router;
    let x = normed(norm.as_ref(), x, ops)?;
    let x = scaled(x, *input_scale, ops)?;
    let logits = ops.linear(&x, projection)?;
    let scores = match scoring {
        Scoring::SparseMixer { tolerance } => {
            let (indices, weights) = ops.sparse_mixer(&logits, *tolerance)?;
            let weights = scaled(weights, *scale, ops)?;
            return Ok(Choice { logits, indices, weights });
        }
        Scoring::Softmax => ops.softmax(&logits)?,
        Scoring::Sigmoid => ops.activate(&logits, Activation::Sigmoid)?,
        Scoring::RootSoftplus => {
            let scores = ops.activate(&logits, Activation::Softplus)?;
            ops.sqrt(&scores)?
        }
    };
    let mut ranked = if *ranks_logits { logits.clone() } else { scores.clone() };
    if let Some(bias) = selection_bias {
        let bias = ops.vector(*bias)?;
        ranked = ops.add(&ranked, &bias)?;
    }
    if let Some(ExpertGroups { count, kept }) = groups {
        ranked = ops.keep_groups(&ranked, *count, *kept)?;
    }
    let indices = match by_token {
        Some(table) => {
            let experts = ops.look_up(*table)?;
            if is_narrow { ops.select(&experts)? } else { experts }
        }
        None => ops.top(&ranked, chosen)?,
    };
    let weights = ops.pick(&scores, &indices)?;
    let mut numerators = weights.clone();
    if let Some(scales) = expert_scales {
        let scales = ops.vector(*scales)?;
        let scaled = ops.multiply(&scores, &scales)?;
        numerators = ops.pick(&scaled, &indices)?;
    }
    if *normalised {
        let mut sum = ops.sum(&weights)?;
        if *normaliser != 0.0 {
            sum = ops.offset(&sum, *normaliser)?;
        }
        numerators = ops.divide(&numerators, &sum)?;
    }
    let weights = scaled(numerators, *scale, ops)?;
    Ok(Choice { logits, indices, weights })
}
