//! Mixtures of experts.

use super::{Ops, run_mlp, scaled};
use crate::decoder::{Activation, ExpertGroups, Experts, Router, Scoring, SharedExpert};

pub(super) fn run<O: Ops>(experts: &Experts, x: &O::Value, ops: &mut O) -> Result<O::Value, O::Error> {
    let Experts { count, chosen, router, gating, gate, up, down, shared } = experts;
    let (indices, weights) = route(router, *chosen, x, ops)?;
    let (mut dispatched, routing) = ops.dispatch(x, &indices, *count)?;
    if router.weighs_inputs {
        dispatched = ops.weigh(&dispatched, &routing, &weights)?;
    }
    let gated = ops.expert_linear(&dispatched, &routing, gate)?;
    let up = if up == gate { gated.clone() } else { ops.expert_linear(&dispatched, &routing, up)? };
    let gated = ops.gate(*gating, &gated, &up)?;
    let results = ops.expert_linear(&gated, &routing, down)?;
    let weights = (!router.weighs_inputs).then_some(&weights);
    let mut sum = ops.combine(&results, &routing, weights)?;
    if let Some(SharedExpert { mlp, gate }) = shared {
        let mut own = run_mlp(mlp, x, ops)?;
        if let Some(gate) = gate {
            let gate = ops.linear(x, gate)?;
            let gate = ops.activate(&gate, Activation::Sigmoid)?;
            own = ops.multiply(&own, &gate)?;
        }
        sum = ops.add(&sum, &own)?;
    }
    Ok(sum)
}

/// The experts of each token and their weights, `[tokens, chosen]` each.
fn route<O: Ops>(
    router: &Router,
    chosen: usize,
    x: &O::Value,
    ops: &mut O,
) -> Result<(O::Value, O::Value), O::Error> {
    let Router {
        projection,
        scoring,
        selection_bias,
        groups,
        normalised,
        normaliser,
        scale,
        weighs_inputs: _,
    } = router;
    let logits = ops.linear(x, projection)?;
    let scores = match scoring {
        Scoring::SparseMixer { tolerance } => {
            let (indices, weights) = ops.sparse_mixer(&logits, *tolerance)?;
            return Ok((indices, scaled(weights, *scale, ops)?));
        }
        Scoring::Softmax => ops.softmax(&logits)?,
        Scoring::Sigmoid => ops.activate(&logits, Activation::Sigmoid)?,
    };
    let mut ranked = scores.clone();
    if let Some(bias) = selection_bias {
        let bias = ops.vector(*bias)?;
        ranked = ops.add(&ranked, &bias)?;
    }
    if let Some(ExpertGroups { count, kept }) = groups {
        ranked = ops.keep_groups(&ranked, *count, *kept)?;
    }
    let indices = ops.top(&ranked, chosen)?;
    let mut weights = ops.pick(&scores, &indices)?;
    if *normalised {
        let mut sum = ops.sum(&weights)?;
        if *normaliser != 0.0 {
            sum = ops.offset(&sum, *normaliser)?;
        }
        weights = ops.divide(&weights, &sum)?;
    }
    Ok((indices, scaled(weights, *scale, ops)?))
}
