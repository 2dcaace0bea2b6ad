//! Mixtures of experts: rows sorted by expert, so that a chosen expert's weights are read once.

use mlxcel_core::Result;
use mlxcel_models::Linear;

use super::PassOps;
use crate::array::{Array, DType, concatenate};

/// The mapping between tokens and rows for experts.
#[derive(Debug)]
pub(crate) struct Routing {
    /// The expert of each row (`[rows]`, `U32`).
    experts: Array,
    /// The rows of each token (`[tokens · chosen]`, `U32`), if rows are sorted by expert instead of in the
    /// order of tokens.
    rows_of: Option<Array>,
    /// The choice (`token · chosen + place`) of each row, in the same case.
    choices: Option<Array>,
    tokens: usize,
    chosen: usize,
}

#[cfg(test)]
impl Routing {
    /// The expert of each row.
    pub(super) fn experts(&self) -> &Array {
        &self.experts
    }
}

/// [`Ops::top`](mlxcel_models::walk::Ops::top): the indices of the `count` highest scores of each row
/// (`[rows, count]`), highest first, ties go to the lowest index.
pub(super) fn top(scores: &Array, count: usize) -> Result<Array> {
    scores.negative()?.argsort(-1)?.slice_axis(-1, 0, count)
}

/// [`Ops::sparse_mixer`](mlxcel_models::walk::Ops::sparse_mixer), of float32 logits.
pub(super) fn sparse_mixer(logits: &Array, tolerance: f32) -> Result<(Array, Array)> {
    let (tokens, experts) = (logits.dim(0), logits.dim(1));
    let indices = top(logits, 2)?;
    let best = logits.take_along_axis(&indices, -1)?;
    let magnitudes = logits.maximum(&logits.negative()?)?;
    let tolerance = Array::scalar(tolerance, DType::F32)?;
    let zero = Array::scalar(0.0, DType::F32)?;
    let ones = Array::full(&[tokens, 1], 1.0, DType::F32)?;
    let mut weights = Vec::with_capacity(2);
    for place in 0..2 {
        let most = best.slice_axis(-1, place, place + 1)?;
        let distance = most.subtract(logits)?.divide(&magnitudes.maximum(&most)?)?;
        let power = logits.subtract(&most)?.exp()?;
        let mut power = distance.greater(&tolerance)?.select(&zero, &power)?;
        if place == 1 {
            let first = indices.slice_axis(-1, 0, 1)?;
            let taken = Array::zeros(&[tokens, experts], DType::F32)?.put_along_axis(&first, &ones, -1)?;
            power = taken.astype(DType::Bool)?.select(&zero, &power)?;
        }
        weights.push(ones.divide(&power.sum(&[-1], true)?)?);
    }
    Ok((indices, concatenate(&weights, -1)?))
}

/// [`Ops::dispatch`](mlxcel_models::walk::Ops::dispatch): `[tokens · chosen, width]`.
pub(super) fn dispatch(x: &Array, chosen: &Array) -> Result<(Array, Routing)> {
    let (tokens, count, width) = (x.dim(0), chosen.dim(1), x.dim(1));
    let rows = tokens * count;
    let experts = chosen.reshape(&[rows])?;
    if tokens == 1 {
        // The experts of a token are distinct.
        let routing = Routing { experts, rows_of: None, choices: None, tokens, chosen: count };
        return Ok((x.broadcast_to(&[rows, width])?, routing));
    }
    let order = experts.argsort(-1)?;
    let token_of: Vec<u32> = (0..).flat_map(|token| std::iter::repeat_n(token, count)).take(rows).collect();
    let token_of = Array::from_slice(&token_of, &[rows])?.take(&order, 0)?;
    let routing = Routing {
        experts: experts.take(&order, 0)?,
        rows_of: Some(order.argsort(-1)?),
        choices: Some(order),
        tokens,
        chosen: count,
    };
    Ok((x.take(&token_of, 0)?, routing))
}

/// [`Ops::weigh`](mlxcel_models::walk::Ops::weigh).
pub(super) fn weigh(x: &Array, routing: &Routing, weights: &Array) -> Result<Array> {
    let weights = weights.reshape(&[routing.tokens * routing.chosen])?;
    let weights = match &routing.choices {
        Some(choices) => weights.take(choices, 0)?,
        None => weights,
    };
    x.multiply(&weights.expand_dims(&[1])?)
}

/// [`Ops::combine`](mlxcel_models::walk::Ops::combine).
pub(super) fn combine(x: &Array, routing: &Routing, weights: Option<&Array>) -> Result<Array> {
    let Routing { experts: _, rows_of, choices: _, tokens, chosen } = routing;
    let x = match rows_of {
        Some(rows) => x.take(rows, 0)?,
        None => x.clone(),
    };
    let x = x.reshape(&[*tokens, *chosen, x.dim(1)])?;
    let weighted = match weights {
        Some(weights) => x.multiply(&weights.expand_dims(&[2])?)?,
        None => x,
    };
    weighted.sum(&[1], false)
}

/// [`Ops::keep_groups`](mlxcel_models::walk::Ops::keep_groups).
pub(super) fn keep_groups(scores: &Array, groups: usize, kept: usize) -> Result<Array> {
    let (tokens, experts) = (scores.dim(0), scores.dim(1));
    let size = experts / groups.max(1);
    let grouped = scores.reshape(&[tokens, groups, size])?;
    let best = grouped.sort(-1)?.slice_axis(-1, size.saturating_sub(2), size)?.sum(&[-1], false)?;
    let kept = top(&best, kept)?;
    let ones = Array::full(&kept.shape(), 1.0, DType::F32)?;
    let kept = Array::zeros(&[tokens, groups], DType::F32)?.put_along_axis(&kept, &ones, -1)?;
    let kept = kept.astype(DType::Bool)?.expand_dims(&[2])?;
    let least = Array::scalar(f32::NEG_INFINITY, scores.dtype()?)?;
    kept.select(&grouped, &least)?.reshape(&[tokens, experts])
}

impl PassOps<'_> {
    /// [`Ops::expert_linear`](mlxcel_models::walk::Ops::expert_linear).
    pub(super) fn run_expert_linear(&self, x: &Array, routing: &Routing, linear: &Linear) -> Result<Array> {
        let Linear { weight, bias, inputs: _, outputs: _ } = *linear;
        let Routing { experts, rows_of, choices: _, tokens: _, chosen: _ } = routing;
        let weights = &self.network.weights;
        let x = self.narrow(x)?;
        let sorted = rows_of.is_some();
        let product = self.network.compute.expert_linear(&x, experts, sorted, weights.get(weight)?)?;
        match bias {
            Some(bias) => self.narrow(&product.add(&weights.dense(bias)?.take(experts, 0)?)?),
            None => Ok(product),
        }
    }
}
