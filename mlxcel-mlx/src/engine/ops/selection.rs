//! The positions that tokens attend to, by the scores of an indexer.

use mlxcel_core::Result;
use mlxcel_models::StateSlot;

use super::PassOps;
use super::experts::top;
use crate::array::{Array, DType, concatenate};
use crate::engine::network::{Span, inconsistent};

/// The most products of queries and keys that are computed together.
const MOST_PRODUCTS: usize = 1 << 26;

/// What the tokens of a span attend to of the positions up to their own.
#[derive(Clone, Debug)]
pub(crate) enum Selected {
    /// All of them.
    All,
    /// Of a span of one token: these (`[count]`, `U32`).
    Positions(Array),
    /// Those that are true for each token (`[tokens, seen]` booleans).
    Mask(Array),
}

impl PassOps<'_> {
    /// [`Ops::select_positions`](mlxcel_models::walk::Ops::select_positions).
    pub(super) fn select_by_index(
        &mut self,
        [query, key, weights]: [&Array; 3],
        (count, rate): (usize, usize),
        slot: StateSlot,
    ) -> Result<()> {
        let key = key.astype(self.network.numerics.kv)?;
        let mut selected = Vec::with_capacity(self.spans.len());
        for (number, span) in self.spans.iter().enumerate() {
            let visible = self.extended(number, span, (&key, None), slot)?;
            let keys = visible.keys.squeeze(&[0, 1])?;
            selected.push(if keys.dim(0) / rate <= count {
                Selected::All
            } else if rate == 1 {
                highest(query, weights, &keys, span, count, self.masks.causal(span.count, keys.dim(0))?)?
            } else {
                let seen = closed(span, rate)?;
                highest(query, weights, &closing(&keys, rate)?, span, count, &seen)?
            });
        }
        self.selected.insert(slot, selected);
        Ok(())
    }

    /// What this pass has selected by the index keys at a slot, for each span; nothing without a slot.
    pub(super) fn selected_at(&self, slot: Option<StateSlot>) -> Result<Vec<Selected>> {
        let Some(slot) = slot else { return Ok(Vec::new()) };
        let selected = self.selected.get(&slot).cloned();
        selected.ok_or_else(|| inconsistent("no layer before this one has selected what it attends to"))
    }
}

/// Of what is kept for each position (`[seen, width]`) that for the last of each `rate` positions.
pub(super) fn closing(x: &Array, rate: usize) -> Result<Array> {
    x.slice_by(&[rate - 1, 0], &[x.dim(0), x.dim(1)], &[rate, 1])
}

/// Which windows of `rate` positions end at the positions of the tokens of `span`, or before: `[tokens,
/// windows]` booleans.
pub(super) fn closed(span: &Span, rate: usize) -> Result<Array> {
    let count = |n: usize| {
        i32::try_from(n).map_err(|_| inconsistent("a sequence is too long for windows of positions"))
    };
    let end = span.position + span.count;
    let windows = Array::arange(0, count(end / rate)?, DType::I32)?.expand_dims(&[0])?;
    let whole: Vec<i32> =
        span.positions().map(|position| count((position + 1) / rate)).collect::<Result<_>>()?;
    Array::from_slice(&whole, &[whole.len(), 1])?.greater(&windows)
}

/// What is selected for the tokens of `span`, which see more `keys` (`[seen, width]`) than `count`, those
/// that are true for them in `visible` (`[tokens, seen]`).
fn highest(
    query: &Array,
    weights: &Array,
    keys: &Array,
    span: &Span,
    count: usize,
    visible: &Array,
) -> Result<Selected> {
    let (heads, seen) = (query.dim(1), keys.dim(0));
    let keys = keys.astype(DType::F32)?.transpose(&[1, 0])?;
    let zero = Array::scalar(0.0, DType::F32)?;
    let (end, together) = (span.start + span.count, (MOST_PRODUCTS / (heads * seen).max(1)).max(1));
    let mut scores = Vec::new();
    for start in (span.start..end).step_by(together) {
        let end = end.min(start + together);
        let query = query.slice_axis(0, start, end)?.astype(DType::F32)?;
        let weights = weights.slice_axis(0, start, end)?.astype(DType::F32)?.expand_dims(&[1])?;
        scores.push(weights.matmul(&query.matmul(&keys)?.maximum(&zero)?)?.squeeze(&[1])?);
    }
    let scores = concatenate(&scores, 0)?;
    if span.count == 1 {
        return Ok(Selected::Positions(top(&scores, count)?.reshape(&[count])?));
    }
    let scores = visible.select(&scores, &Array::scalar(f32::NEG_INFINITY, DType::F32)?)?;
    let ones = Array::full(&[span.count, count], 1.0, DType::F32)?;
    let chosen = Array::zeros(&[span.count, seen], DType::F32)?;
    let chosen = chosen.put_along_axis(&top(&scores, count)?, &ones, -1)?.astype(DType::Bool)?;
    Ok(Selected::Mask(chosen.logical_and(visible)?))
}
