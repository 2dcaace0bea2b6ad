//! Dispatches the most expensive operations to the fastest kernels: our own on a CPU if they support the
//! case, otherwise MLX's.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_models::{Activation, DistanceBias, WeightId, alibi_slopes, distance_bucket};

use super::cache::{Order, Visible};
use super::weights::Weight;
use crate::array::{Array, DType, Element, Mask, Mode, Packed, concatenate};
use crate::kernels::Kernels;

/// How operations are computed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Compute {
    /// Our kernels, for float32 activations; none if MLX computes everything.
    kernels: Option<Kernels>,
}

/// How attention turns products of queries and keys into weights.
#[derive(Clone, Debug)]
pub(super) struct Scoring {
    /// The factor of the products.
    pub(super) scale: f32,
    /// Scores become `cap · tanh(score / cap)`.
    pub(super) soft_cap: Option<f32>,
    /// A score per head (`[heads]`) that takes part in its softmax and has no value.
    pub(super) sinks: Option<Array>,
}

/// Masks for MLX's attention; the layers of a pass share them.
#[derive(Debug, Default)]
pub(super) struct Masks {
    orders: HashMap<(usize, usize, Order), Array>,
    biases: HashMap<(usize, usize, DistanceBias), Array>,
}

impl Compute {
    pub(super) fn new(kernels: Option<Kernels>) -> Self {
        Self { kernels }
    }

    /// `x · weightᵀ + bias` for `x` of `[tokens, inputs]`, in the type of `x`.
    pub(super) fn linear(&self, x: &Array, weight: &Weight, bias: Option<&Array>) -> Result<Array> {
        let dtype = x.dtype()?;
        let product = match (self.kernels, weight) {
            (Some(kernels), Weight::Dense(values)) => return kernels.linear(x, values, bias),
            (Some(kernels), Weight::Packed(packed)) if Kernels::takes(packed) => {
                return kernels.packed_linear(x, packed, bias);
            }
            (_, Weight::Dense(values)) => x.matmul(&values.astype(dtype)?.transpose(&[1, 0])?)?,
            (_, Weight::Packed(packed)) => packed.multiply(x, true)?,
        };
        let sum = match bias {
            Some(bias) => product.add(bias)?,
            None => product,
        };
        sum.astype(dtype)
    }

    /// `x / √(mean(x²) + epsilon) · weight` along the last axis, in the type of `x`.
    pub(super) fn rms_norm(&self, x: &Array, weight: Option<&Array>, epsilon: f32) -> Result<Array> {
        match self.kernels {
            Some(kernels) => kernels.rms_norm(x, weight, epsilon),
            None => x.rms_norm(weight, epsilon)?.astype(x.dtype()?),
        }
    }

    /// The natural log probabilities (`[rows, n]`) of `tokens` (`[rows, n]`) by the softmax of `logits`
    /// (`[rows, vocabulary]`, float32).
    pub(super) fn logprobs(&self, logits: &Array, tokens: &Array) -> Result<Array> {
        let total = match self.kernels {
            Some(kernels) => kernels.log_sum_exp(logits)?,
            None => logits.logsumexp(&[-1], true)?,
        };
        logits.take_along_axis(tokens, -1)?.subtract(&total)
    }

    /// `activation(gate) · up`, in the type of both.
    pub(super) fn gated(&self, activation: Activation, gate: &Array, up: &Array) -> Result<Array> {
        match (self.kernels, activation) {
            (Some(kernels), Activation::Silu) => kernels.silu_mul(gate, up),
            _ => activate(activation, gate)?.multiply(up),
        }
    }

    /// Queries or keys (`[tokens, heads, head_dim]`) rotated by the cosines and sines (`[tokens, 1, pairs]`,
    /// float32) of their positions: element `i` of the first `2 · pairs` with element `i + pairs`, in
    /// float32.
    pub(super) fn rotate(&self, x: &Array, cos: &Array, sin: &Array) -> Result<Array> {
        if let Some(kernels) = self.kernels {
            return kernels.rotate(x, cos, sin);
        }
        let (dtype, pairs, width) = (x.dtype()?, cos.dim(-1), x.dim(-1));
        let x = x.astype(DType::F32)?;
        let (a, b) = (x.slice_axis(-1, 0, pairs)?, x.slice_axis(-1, pairs, 2 * pairs)?);
        let first = a.multiply(cos)?.subtract(&b.multiply(sin)?)?;
        let second = b.multiply(cos)?.add(&a.multiply(sin)?)?;
        let turned = match width > 2 * pairs {
            true => concatenate([&first, &second, &x.slice_axis(-1, 2 * pairs, width)?], -1)?,
            false => concatenate([&first, &second], -1)?,
        };
        turned.astype(dtype)
    }

    /// Attention of queries (`[tokens, heads, width]`) over what they see: `[tokens, heads · width of
    /// values]`, in their type. Without values, these are the first `value_width` elements of the keys.
    pub(super) fn attention(
        &self,
        queries: &Array,
        visible: &Visible,
        value_width: usize,
        scoring: &Scoring,
        masks: &mut Masks,
    ) -> Result<Array> {
        let (tokens, width) = (queries.dim(0), queries.dim(1) * value_width);
        let Visible { keys, values, order } = visible;
        let values = match values {
            Some(values) => values.clone(),
            None => keys.slice_axis(-1, 0, value_width)?,
        };
        let Scoring { scale, soft_cap, sinks } = scoring;
        let is_causal = tokens == 1 || matches!(order, Order::Causal | Order::Window(_));
        if let Some(kernels) = self.kernels.filter(|_| is_causal && soft_cap.is_none() && sinks.is_none()) {
            // A single query that sees all keys has the last position, whatever the keys' order.
            let window = if let Order::Window(window) = order { Some(*window) } else { None };
            return kernels.attention(queries, keys, &values, *scale, window)?.reshape(&[tokens, width]);
        }
        let dtype = queries.dtype()?;
        let (keys, values) = (keys.astype(dtype)?, values.astype(dtype)?);
        if let Some(cap) = *soft_cap {
            let mask = masks.of(*order, tokens, keys.dim(2))?;
            let attended = capped(queries, &keys, &values, *scale, cap, sinks.as_ref(), mask)?;
            return attended.astype(dtype)?.reshape(&[tokens, width]);
        }
        let mask = match *order {
            Order::Causal => Mask::Causal,
            order => masks.of(order, tokens, keys.dim(2))?.map_or(Mask::None, Mask::Array),
        };
        fused(queries, &keys, &values, scoring, mask)
    }

    /// The same under a mask (`[tokens, seen]` booleans, or what is added to scores), without soft cap.
    pub(super) fn masked_attention(
        &self,
        queries: &Array,
        visible: &Visible,
        value_width: usize,
        scoring: &Scoring,
        mask: &Array,
    ) -> Result<Array> {
        let dtype = queries.dtype()?;
        let keys = visible.keys.astype(dtype)?;
        let values = match &visible.values {
            Some(values) => values.astype(dtype)?,
            None => keys.slice_axis(-1, 0, value_width)?,
        };
        fused(queries, &keys, &values, scoring, Mask::Array(mask))
    }

    /// Each row of `x` (`[rows, inputs]`) times the matrix of `weight` (`[experts, outputs, inputs]`)
    /// selected by `experts` (`[rows]`, `U32`), in the type of `x`; `sorted` if these ascend.
    pub(super) fn expert_linear(
        &self,
        x: &Array,
        experts: &Array,
        sorted: bool,
        weight: &Weight,
    ) -> Result<Array> {
        match (self.kernels, weight) {
            (Some(kernels), Weight::Dense(values)) => return kernels.expert_linear(x, experts, values),
            (Some(kernels), Weight::Packed(packed)) if Kernels::takes(packed) => {
                return kernels.packed_expert_linear(x, experts, packed);
            }
            _ => {}
        }
        let dtype = x.dtype()?;
        let rows = x.expand_dims(&[1])?;
        let product = match weight {
            Weight::Packed(packed) => packed.gather_multiply(&rows, experts, sorted)?,
            Weight::Dense(values) if values.dtype()? == dtype => {
                rows.gather_matmul(&values.transpose(&[0, 2, 1])?, experts, sorted)?
            }
            // Of the selected experts only, so that no others are converted.
            Weight::Dense(values) if x.dim(0) < values.dim(0) => {
                rows.matmul(&values.take(experts, 0)?.astype(dtype)?.transpose(&[0, 2, 1])?)?
            }
            Weight::Dense(values) => {
                rows.gather_matmul(&values.astype(dtype)?.transpose(&[0, 2, 1])?, experts, sorted)?
            }
        };
        product.squeeze(&[1])?.astype(dtype)
    }

    /// Each head of `x` (`[tokens, heads, inputs]`) times its own matrix: `x · weightᵀ` of `[heads, outputs,
    /// inputs]`, or if `transposed` `x · weight` of `[heads, inputs, outputs]`. `[tokens, heads,
    /// outputs]`, in the type of `x`.
    pub(super) fn head_linear(&self, x: &Array, weight: &Weight, transposed: bool) -> Result<Array> {
        let dtype = x.dtype()?;
        let x = x.transpose(&[1, 0, 2])?;
        let product = match weight {
            Weight::Packed(packed) => packed.multiply(&x, !transposed)?,
            Weight::Dense(values) if transposed => x.matmul(&values.astype(dtype)?)?,
            Weight::Dense(values) => x.matmul(&values.astype(dtype)?.transpose(&[0, 2, 1])?)?,
        };
        product.transpose(&[1, 0, 2])?.astype(dtype)
    }
}

/// MLX's attention of queries (`[tokens, heads, width]`) over keys and values of their type (`[1, kv_heads, n,
/// width]`): `[tokens, heads · width of values]`.
fn fused(queries: &Array, keys: &Array, values: &Array, scoring: &Scoring, mask: Mask<'_>) -> Result<Array> {
    let (tokens, width, dtype) = (queries.dim(0), queries.dim(1) * values.dim(-1), queries.dtype()?);
    let sinks = scoring.sinks.as_ref().map(|sinks| sinks.astype(dtype)).transpose()?;
    let queries = queries.transpose(&[1, 0, 2])?.expand_dims(&[0])?;
    let attended = queries.attention(keys, values, scoring.scale, mask, sinks.as_ref())?;
    attended.transpose(&[0, 2, 1, 3])?.reshape(&[tokens, width])
}

/// Attention with capped scores, in float32: queries `[tokens, heads, width]`, keys and values `[1, kv_heads,
/// n, width]`; returns `[tokens, heads, width of values]`.
fn capped(
    queries: &Array,
    keys: &Array,
    values: &Array,
    scale: f32,
    cap: f32,
    sinks: Option<&Array>,
    mask: Option<&Array>,
) -> Result<Array> {
    let (tokens, heads, kv_heads) = (queries.dim(0), queries.dim(1), keys.dim(1));
    let grouped = [kv_heads, heads / kv_heads, tokens, queries.dim(2)];
    let queries = queries.multiply_scalar(scale)?.transpose(&[1, 0, 2])?.reshape(&grouped)?;
    let per_group = |x: &Array| x.squeeze(&[0])?.expand_dims(&[1]);
    let (keys, values) = (per_group(keys)?, per_group(values)?);
    let scores = queries.matmul(&keys.transpose(&[0, 1, 3, 2])?)?.astype(DType::F32)?;
    let mut scores = soft_cap(&scores, cap)?;
    if let Some(mask) = mask {
        scores = mask.select(&scores, &Array::scalar(f32::NEG_INFINITY, DType::F32)?)?;
    }
    let seen = scores.dim(-1);
    if let Some(sinks) = sinks {
        let sinks = sinks.astype(DType::F32)?.reshape(&[kv_heads, heads / kv_heads, 1, 1])?;
        let sinks = sinks.broadcast_to(&[kv_heads, heads / kv_heads, tokens, 1])?;
        scores = concatenate([&scores, &sinks], -1)?;
    }
    let weights = scores.softmax(-1)?.slice_axis(-1, 0, seen)?.astype(values.dtype()?)?;
    let attended = weights.matmul(&values)?.reshape(&[heads, tokens, values.dim(-1)])?;
    attended.transpose(&[1, 0, 2])
}

/// `cap · tanh(x / cap)`, in the type of `x`.
pub(super) fn soft_cap(x: &Array, cap: f32) -> Result<Array> {
    x.divide(&Array::scalar(cap, x.dtype()?)?)?.tanh()?.multiply_scalar(cap)
}

impl Masks {
    /// The mask of queries that see their own position and those before.
    pub(super) fn causal(&mut self, queries: usize, seen: usize) -> Result<&Array> {
        known(&mut self.orders, (queries, seen, Order::Causal), || order_mask(queries, seen, Order::Causal))
    }

    /// The mask of an order of keys, also if each query sees all.
    pub(super) fn seen(&mut self, order: Order, queries: usize, seen: usize) -> Result<Array> {
        match self.of(order, queries, seen)? {
            Some(mask) => Ok(mask.clone()),
            None => Array::full(&[queries, seen], 1.0, DType::F32)?.astype(DType::Bool),
        }
    }

    /// The mask of an order; none if each query sees all.
    fn of(&mut self, order: Order, queries: usize, seen: usize) -> Result<Option<&Array>> {
        match order {
            Order::All => Ok(None),
            Order::Near(window) if window >= seen => Ok(None),
            Order::Causal | Order::Window(_) | Order::Near(_) => {
                let make = || order_mask(queries, seen, order);
                known(&mut self.orders, (queries, seen, order), make).map(Some)
            }
        }
    }

    /// What is added to the scores of `heads` heads for the distances of `tokens` tokens (`[heads, tokens,
    /// tokens]`). `table` has the rows of buckets, if these are what is added.
    pub(super) fn bias(
        &mut self,
        bias: DistanceBias,
        (heads, tokens): (usize, usize),
        table: impl FnOnce(WeightId) -> Result<Array>,
    ) -> Result<Array> {
        let make = || match bias {
            DistanceBias::Slopes => falling(heads, tokens),
            DistanceBias::Buckets(weight) => bucketed(&table(weight)?, tokens),
        };
        known(&mut self.biases, (heads, tokens, bias), make).cloned()
    }
}

/// The mask at a key, which `make` makes if there is none yet.
fn known<K: Eq + Hash>(
    masks: &mut HashMap<K, Array>,
    key: K,
    make: impl FnOnce() -> Result<Array>,
) -> Result<&Array> {
    match masks.entry(key) {
        Entry::Occupied(entry) => Ok(entry.into_mut()),
        Entry::Vacant(entry) => Ok(entry.insert(make()?)),
    }
}

/// Which of `seen` keys each of `queries` queries sees (`[queries, seen]` booleans), with both ending at the
/// same position.
fn order_mask(queries: usize, seen: usize, order: Order) -> Result<Array> {
    let count = |n: usize| {
        i32::try_from(n)
            .map_err(|_| Error::new(ErrorKind::Internal, "step", "a sequence is too long to be masked"))
    };
    let window = match order {
        Order::All | Order::Causal => seen,
        Order::Window(window) | Order::Near(window) => window,
    };
    let (queries, seen, window) = (count(queries)?, count(seen)?, count(window)?);
    let own = Array::arange(seen - queries, seen, DType::I32)?.expand_dims(&[1])?;
    let keys = Array::arange(0, seen, DType::I32)?.expand_dims(&[0])?;
    let window = Array::from_slice(&[window], &[1, 1])?;
    let near = keys.greater(&own.subtract(&window)?)?;
    match order {
        Order::All | Order::Near(_) => near.logical_and(&own.greater(&keys.subtract(&window)?)?),
        Order::Causal | Order::Window(_) => near.logical_and(&keys.less_equal(&own)?),
    }
}

/// [`DistanceBias::Slopes`].
fn falling(heads: usize, tokens: usize) -> Result<Array> {
    let lowered = each_pair(tokens, |offset| -offset.abs() as f32)?;
    let slopes = Array::from_slice(&alibi_slopes(heads), &[heads, 1, 1])?;
    slopes.multiply(&lowered.expand_dims(&[0])?)
}

/// [`DistanceBias::Buckets`] of a table `[buckets, heads]`.
fn bucketed(table: &Array, tokens: usize) -> Result<Array> {
    let buckets = each_pair(tokens, |offset| distance_bucket(offset) as u32)?;
    table.astype(DType::F32)?.take(&buckets, 0)?.transpose(&[2, 0, 1])
}

/// A number for each pair of tokens, by the position of the second less that of the first: `[tokens,
/// tokens]`.
fn each_pair<T: Copy + Element>(tokens: usize, of: impl Fn(i64) -> T) -> Result<Array> {
    let last = tokens as i64 - 1;
    let by_offset: Vec<T> = (-last..=last).map(of).collect();
    let rows = (1..=tokens).rev().flat_map(|first| &by_offset[first - 1..][..tokens]);
    Array::from_slice(&rows.copied().collect::<Vec<_>>(), &[tokens, tokens])
}

/// The rows `tokens` of an embedding table, in type `dtype`.
pub(super) fn embed(table: &Weight, tokens: &Array, dtype: DType) -> Result<Array> {
    match table {
        Weight::Dense(values) => values.take(tokens, 0)?.astype(dtype),
        Weight::Packed(packed) => {
            let rows = packed.with(packed.words.take(tokens, 0)?, |groups| groups.take(tokens, 0))?;
            dequantize(&rows, dtype)
        }
    }
}

/// The values of a packed matrix in type `dtype`.
pub(super) fn dequantize(packed: &Packed, dtype: DType) -> Result<Array> {
    if packed.mode != Mode::Affine {
        return packed.dequantize(dtype);
    }
    // MLX computes in the scales' type, and rounds to it.
    packed.with(packed.words.clone(), |groups| groups.astype(dtype))?.dequantize(dtype)
}

/// The activation of `x`, in its type.
///
/// `Gelu` is x·Φ(x) and `GeluTanh` its approximation by tanh (arXiv:1606.08415), as transformers' `ACT2FN`
/// names them.
pub(super) fn activate(activation: Activation, x: &Array) -> Result<Array> {
    match activation {
        Activation::Silu => x.multiply(&x.sigmoid()?),
        Activation::Relu => x.maximum(&Array::scalar(0.0, x.dtype()?)?),
        Activation::ReluSquared => x.maximum(&Array::scalar(0.0, x.dtype()?)?)?.square(),
        Activation::Sigmoid => x.sigmoid(),
        Activation::Tanh => x.tanh(),
        // Above 20, where PyTorch takes x itself, both are x in single precision.
        Activation::Softplus => x.logaddexp(&Array::scalar(0.0, x.dtype()?)?),
        Activation::Gelu => {
            let erf = x.multiply_scalar(std::f32::consts::FRAC_1_SQRT_2)?.erf()?;
            x.multiply_scalar(0.5)?.multiply(&erf.add_scalar(1.0)?)
        }
        Activation::GeluTanh => {
            // 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))
            let cubic = x.square()?.multiply(x)?.multiply_scalar(0.044_715)?;
            let inner = x.add(&cubic)?.multiply_scalar((2.0 / std::f64::consts::PI).sqrt() as f32)?;
            x.multiply_scalar(0.5)?.multiply(&inner.tanh()?.add_scalar(1.0)?)
        }
    }
}

/// Each element of `x` clamped to a range, in its type; an infinite end is no limit.
pub(super) fn clamp(x: &Array, least: f32, most: f32) -> Result<Array> {
    let mut limited = x.clone();
    if least > f32::NEG_INFINITY {
        limited = limited.maximum(&Array::scalar(least, x.dtype()?)?)?;
    }
    if most < f32::INFINITY {
        limited = limited.minimum(&Array::scalar(most, x.dtype()?)?)?;
    }
    Ok(limited)
}

#[cfg(test)]
mod tests;
