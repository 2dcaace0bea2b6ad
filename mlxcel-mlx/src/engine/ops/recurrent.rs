//! Convolutions and linear recurrences over the states of each row, in float32.
//!
//! One token is one step of the recurrence. Several are computed in chunks: within a chunk by matrix products
//! over pairs of tokens, between chunks by the state, which is the same recurrence, unrolled.

use mlxcel_core::Result;
use mlxcel_models::walk::DeltaRuleOperands;
use mlxcel_models::{Convolution, StateSlot};

use super::PassOps;
use crate::array::{Array, DType, concatenate};
use crate::engine::compute::activate;
use crate::engine::network::{Span, inconsistent};
use crate::engine::state::{LayerState, StateLayout};
use crate::engine::weights::Derived;

/// The tokens of a chunk: matrices over their pairs take this many products per token.
const CHUNK: usize = 32;

impl PassOps<'_> {
    /// The state of a span's sequence at `slot`: zero before its first position.
    fn fixed(&self, number: usize, span: &Span, slot: StateSlot) -> Result<Array> {
        let known = self.states.get(number).copied().flatten().filter(|_| span.position > 0);
        match (known.and_then(|states| states.get(slot)), self.network.layout.at(slot)?) {
            (Some(LayerState::Fixed(state)), StateLayout::Fixed(_)) => Ok(state.clone()),
            (None, StateLayout::Fixed(shape)) => Array::zeros(shape, DType::F32),
            _ => Err(inconsistent("a recurrence got a cache as its state")),
        }
    }

    /// Runs `step(own inputs, state)` for each span, which returns outputs (`[tokens, …]`) and the next
    /// state.
    pub(super) fn each_row<const N: usize>(
        &mut self,
        inputs: [&Array; N],
        slot: StateSlot,
        mut step: impl FnMut(&mut Self, [Array; N], Array) -> Result<(Array, Array)>,
    ) -> Result<Array> {
        let mut outputs = Vec::with_capacity(self.spans.len());
        let inputs = inputs.map(|input| input.astype(DType::F32));
        let inputs = all(inputs)?;
        for (number, span) in self.spans.iter().enumerate() {
            let state = self.fixed(number, span, slot)?;
            let own = all(inputs.each_ref().map(|input| part(input, span.start, span.start + span.count)))?;
            let (output, state) = step(self, own, state)?;
            self.filled[number].push(slot, LayerState::Fixed(state))?;
            outputs.push(output);
        }
        concatenate(&outputs, 0)
    }

    /// [`Ops::convolve`](mlxcel_models::walk::Ops::convolve).
    pub(super) fn convolve_rows(
        &mut self,
        x: &Array,
        convolution: &Convolution,
        slot: StateSlot,
    ) -> Result<Array> {
        let Convolution { weight, bias, channels, taps, activation } = *convolution;
        let network = self.network;
        let weights = &network.weights;
        // `[taps, channels]`.
        let factors = weights.derived(weight, Derived::Transposed)?;
        let mut mixed = self.each_row([x], slot, |_, [x], state| {
            let count = x.dim(0);
            let inputs = concatenate([&state.transpose(&[1, 0])?, &x], 0)?;
            let output = if count == 1 {
                inputs.multiply(&factors)?.sum(&[0], true)?
            } else {
                let tap = |tap: usize| {
                    inputs.slice_axis(0, tap, tap + count)?.multiply(&factors.slice_axis(0, tap, tap + 1)?)
                };
                let first = tap(0)?;
                (1..taps).try_fold(first, |sum, index| sum.add(&tap(index)?))?
            };
            let kept = inputs.slice(&[count, 0], &[count + taps - 1, channels])?;
            Ok((output, kept.transpose(&[1, 0])?.contiguous()?))
        })?;
        if let Some(bias) = bias {
            mixed = mixed.add(weights.dense(bias)?)?;
        }
        match activation {
            Some(activation) => activate(activation, &mixed),
            None => Ok(mixed),
        }
    }

    /// [`Ops::delta_rule`](mlxcel_models::walk::Ops::delta_rule) of query, key, value, decay and beta (Yang
    /// et al., 2024, "Gated Delta Networks", in chunks by its equations 8 to 10; with decays by channel
    /// Kimi Team, 2025, "Kimi Linear").
    pub(super) fn run_delta_rule(&mut self, inputs: [&Array; 5], slot: StateSlot) -> Result<Array> {
        self.each_row(inputs, slot, |ops, [query, key, value, decay, beta], mut state| {
            let (count, heads) = (value.dim(0), value.dim(1));
            let mut outputs = Vec::new();
            for first in (0..count).step_by(CHUNK) {
                let last = count.min(first + CHUNK);
                let of = |x: &Array| part(x, first, last);
                let shared = |x: &Array| heads_first(&repeated(&of(x)?, heads)?);
                let per_head = |x: &Array| of(x)?.transpose(&[1, 0]);
                let (query, key) = (shared(&query)?, shared(&key)?);
                let value = heads_first(&of(&value)?)?;
                let beta = per_head(&beta)?.expand_dims(&[2])?;
                // The log decays, `[heads, tokens, 1]`, or with one for each channel of keys `[heads, tokens,
                // width]`.
                let decay = match decay.rank() {
                    3 => heads_first(&of(&decay)?)?,
                    _ => per_head(&decay)?.expand_dims(&[2])?,
                };
                let output = if last - first == 1 {
                    let kept = state.multiply(&decay.transpose(&[0, 2, 1])?.exp()?)?;
                    let change = value.subtract(&key.matmul(&kept)?)?.multiply(&beta)?;
                    state = kept.add(&key.transpose(&[0, 2, 1])?.multiply(&change)?)?;
                    query.matmul(&state)?
                } else {
                    let triangle = ops.triangles.get(last - first)?;
                    let sums = decay.cumsum(1, true)?;
                    let decays = triangle.decays(&sums)?;
                    let from_start = sums.exp()?;
                    let inverse = triangle.inverse(&pairs(&key, &key, &decays)?.multiply(&beta)?)?;
                    let seen = key.multiply(&from_start)?.matmul(&state)?;
                    let changes = inverse.matmul(&value.subtract(&seen)?.multiply(&beta)?)?;
                    let own = pairs(&query, &key, &decays)?.matmul(&changes)?;
                    let output = query.multiply(&from_start)?.matmul(&state)?.add(&own)?;
                    let to_end = to_end(&sums)?;
                    let added = key.multiply(&to_end)?.transpose(&[0, 2, 1])?.matmul(&changes)?;
                    state = state.multiply(&at_end(&from_start)?.transpose(&[0, 2, 1])?)?.add(&added)?;
                    output
                };
                outputs.push(output.transpose(&[1, 0, 2])?);
            }
            Ok((concatenate(&outputs, 0)?, state))
        })
    }

    /// [`Ops::generalized_delta_rule`](mlxcel_models::walk::Ops::generalized_delta_rule) (Peng et al., 2025,
    /// "RWKV-7 Goose", in chunks as the gated delta rule).
    pub(super) fn run_generalized_delta_rule(
        &mut self,
        operands: &DeltaRuleOperands<Array>,
        slot: StateSlot,
    ) -> Result<Array> {
        let DeltaRuleOperands { query, key, value, decay, removal, rewrite } = operands;
        let inputs = [query, key, value, decay, removal, rewrite];
        self.each_row(inputs, slot, |ops, inputs, mut state| {
            let count = inputs[0].dim(0);
            let mut outputs = Vec::new();
            for first in (0..count).step_by(CHUNK) {
                let last = count.min(first + CHUNK);
                let of = |x: &Array| heads_first(&part(x, first, last)?);
                let [query, key, value, decay, removal, rewrite] = all(inputs.each_ref().map(of))?;
                let columns = |x: &Array| x.transpose(&[0, 2, 1]);
                let output = if last - first == 1 {
                    let removed = removal.matmul(&state)?;
                    let kept = state.multiply(&columns(&decay)?.exp()?)?;
                    let rewritten = columns(&rewrite)?.multiply(&removed)?;
                    state = kept.add(&rewritten)?.add(&columns(&key)?.multiply(&value)?)?;
                    query.matmul(&state)?
                } else {
                    let triangle = ops.triangles.get(last - first)?;
                    let sums = decay.cumsum(1, true)?;
                    let decays = triangle.decays(&sums)?;
                    // A token reads what is there before its own decay: up to the token before.
                    let earlier = one_later(&decays)?;
                    let (from_start, until) = (sums.exp()?, one_later(&sums)?.exp()?);
                    let own = pairs(&removal, &rewrite, &earlier)?.multiply_scalar(-1.0)?;
                    let inverse = triangle.inverse(&own)?;
                    let before = removal.multiply(&until)?.matmul(&state)?;
                    let seen = pairs(&removal, &key, &earlier)?.matmul(&value)?.add(&before)?;
                    let removed = inverse.matmul(&seen)?;
                    let output = query.multiply(&from_start)?.matmul(&state)?;
                    let output = output.add(&pairs(&query, &key, &decays)?.matmul(&value)?)?;
                    let output = output.add(&pairs(&query, &rewrite, &decays)?.matmul(&removed)?)?;
                    let to_end = to_end(&sums)?;
                    let written = columns(&key.multiply(&to_end)?)?.matmul(&value)?;
                    let rewritten = columns(&rewrite.multiply(&to_end)?)?.matmul(&removed)?;
                    let kept = state.multiply(&columns(&at_end(&from_start)?)?)?;
                    state = kept.add(&written)?.add(&rewritten)?;
                    output
                };
                outputs.push(output.transpose(&[1, 0, 2])?);
            }
            Ok((concatenate(&outputs, 0)?, state))
        })
    }

    /// [`Ops::state_space`](mlxcel_models::walk::Ops::state_space) of x, dt, input and output (Dao and Gu,
    /// 2024, "Mamba-2", in chunks by its section 6).
    pub(super) fn run_state_space(
        &mut self,
        inputs: [&Array; 4],
        rate: &Array,
        slot: StateSlot,
    ) -> Result<Array> {
        let rate = rate.astype(DType::F32)?;
        if rate.rank() == 3 {
            return self.run_selective_scan(inputs, &rate, slot);
        }
        self.each_row(inputs, slot, |ops, [x, dt, input, output], mut state| {
            let (count, heads) = (x.dim(0), x.dim(1));
            let mut outputs = Vec::new();
            for first in (0..count).step_by(CHUNK) {
                let last = count.min(first + CHUNK);
                let of = |x: &Array| part(x, first, last);
                let shared = |x: &Array| heads_first(&repeated(&of(x)?, heads)?);
                let (input, output) = (shared(&input)?, shared(&output)?);
                let dt = of(&dt)?;
                let added = heads_first(&of(&x)?.multiply(&dt.expand_dims(&[2])?)?)?;
                // The log decays, `[heads, tokens, 1]`.
                let decay = dt.multiply(&rate)?.transpose(&[1, 0])?.expand_dims(&[2])?;
                let result = if last - first == 1 {
                    let kept = state.multiply(&decay.exp()?)?;
                    state = kept.add(&added.transpose(&[0, 2, 1])?.multiply(&input)?)?;
                    output.matmul(&state.transpose(&[0, 2, 1])?)?
                } else {
                    let triangle = ops.triangles.get(last - first)?;
                    let sums = decay.cumsum(1, true)?;
                    let from_start = sums.exp()?;
                    let own = pairs(&output, &input, &triangle.decays(&sums)?)?.matmul(&added)?;
                    let before = output.multiply(&from_start)?.matmul(&state.transpose(&[0, 2, 1])?)?;
                    let added = added.multiply(&to_end(&sums)?)?.transpose(&[0, 2, 1])?;
                    state = state.multiply(&at_end(&from_start)?)?.add(&added.matmul(&input)?)?;
                    own.add(&before)?
                };
                outputs.push(result.transpose(&[1, 0, 2])?);
            }
            Ok((concatenate(&outputs, 0)?, state))
        })
    }
}

impl PassOps<'_> {
    /// The same with a rate for each number of a state, `[1, heads, state_size]`: in chunks, whose states
    /// follow from one another by a scan that doubles its reach (Hillis and Steele, 1986, "Data Parallel
    /// Algorithms").
    fn run_selective_scan(&mut self, inputs: [&Array; 4], rate: &Array, slot: StateSlot) -> Result<Array> {
        /// Short, since the states of all of its tokens are computed.
        const CHUNK: usize = 16;
        self.each_row(inputs, slot, |_, [x, dt, input, output], mut state| {
            let (count, heads) = (x.dim(0), x.dim(1));
            let mut outputs = Vec::new();
            for first in (0..count).step_by(CHUNK) {
                let last = count.min(first + CHUNK);
                let of = |x: &Array| part(x, first, last);
                // `[tokens, heads, 1, state_size]`.
                let shared = |x: &Array| repeated(&of(x)?, heads)?.expand_dims(&[2]);
                let (input, output) = (shared(&input)?, shared(&output)?);
                let dt = of(&dt)?.expand_dims(&[2])?;
                let mut factors = dt.multiply(rate)?.exp()?.expand_dims(&[2])?;
                let x = of(&x)?.multiply(&dt)?.expand_dims(&[3])?;
                let mut states = x.multiply(&input)?;
                let mut reach = 1;
                while reach < last - first {
                    let tokens = last - first;
                    let late = |x: &Array| part(x, reach, tokens);
                    let early = |x: &Array| part(x, 0, tokens - reach);
                    let begin = |x: &Array| part(x, 0, reach);
                    let moved = late(&states)?.add(&late(&factors)?.multiply(&early(&states)?)?)?;
                    states = concatenate([&begin(&states)?, &moved], 0)?;
                    let longer = late(&factors)?.multiply(&early(&factors)?)?;
                    factors = concatenate([&begin(&factors)?, &longer], 0)?;
                    reach *= 2;
                }
                let states = states.add(&factors.multiply(&state.expand_dims(&[0])?)?)?;
                outputs.push(states.multiply(&output)?.sum(&[-1], false)?);
                let tokens = last - first;
                state = part(&states, tokens - 1, tokens)?.reshape(&state.shape())?;
            }
            Ok((concatenate(&outputs, 0)?, state))
        })
    }
}

/// The results, or the first error.
fn all<const N: usize>(results: [Result<Array>; N]) -> Result<[Array; N]> {
    let arrays = results.into_iter().collect::<Result<Vec<_>>>()?;
    arrays.try_into().map_err(|_| inconsistent("an operation lost one of its inputs"))
}

/// Tokens `first..last` of `x` (`[tokens, …]`).
fn part(x: &Array, first: usize, last: usize) -> Result<Array> {
    if first == 0 && last == x.dim(0) { Ok(x.clone()) } else { x.slice_axis(0, first, last) }
}

/// `[tokens, groups, width]` as `[tokens, heads, width]`, each group repeated for consecutive heads.
fn repeated(x: &Array, heads: usize) -> Result<Array> {
    let (tokens, groups, width) = (x.dim(0), x.dim(1), x.dim(2));
    if groups == heads {
        return Ok(x.clone());
    }
    let x = x.expand_dims(&[2])?.broadcast_to(&[tokens, groups, heads / groups.max(1), width])?;
    x.reshape(&[tokens, heads, width])
}

/// `[tokens, heads, width]` as `[heads, tokens, width]`.
fn heads_first(x: &Array) -> Result<Array> {
    x.transpose(&[1, 0, 2])
}

/// The products of each row of `a` with each row of `b` (`[heads, tokens, width]`), decayed by `[heads,
/// tokens, tokens, channels]`, where there is one channel or as many as elements: `[heads, tokens, tokens]`.
fn pairs(a: &Array, b: &Array, decays: &Array) -> Result<Array> {
    if decays.dim(3) == 1 {
        return a.matmul(&b.transpose(&[0, 2, 1])?)?.multiply(&decays.reshape(&decays.shape()[..3])?);
    }
    a.expand_dims(&[2])?.multiply(&b.expand_dims(&[1])?)?.multiply(decays)?.sum(&[-1], false)
}

/// `[heads, tokens, …]` with the rows of each token at the next one, and zeros at the first.
fn one_later(x: &Array) -> Result<Array> {
    let tokens = x.dim(1);
    let mut first = x.shape();
    first[1] = 1;
    concatenate([&Array::zeros(&first, DType::F32)?, &x.slice_axis(1, 0, tokens - 1)?], 1)
}

/// The decay from each token to the end of its chunk, from cumulative sums: both `[heads, tokens, channels]`.
fn to_end(sums: &Array) -> Result<Array> {
    let tokens = sums.dim(1);
    sums.slice_axis(1, tokens - 1, tokens)?.subtract(sums)?.exp()
}

/// The decay of the state over its chunk: the last of `[heads, tokens, channels]`.
fn at_end(from_start: &Array) -> Result<Array> {
    let tokens = from_start.dim(1);
    from_start.slice_axis(1, tokens - 1, tokens)
}
