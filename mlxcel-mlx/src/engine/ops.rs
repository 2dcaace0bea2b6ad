//! The operations that make up most of a decoder's work, by the fastest means that there is for them: our kernels on a CPU, MLX's
//! elsewhere and where ours do not go.

use std::collections::HashMap;

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_models::{Activation, QuantizationMode};

use super::cache::{Order, Visible};
use super::weights::Weight;
use crate::array::{Array, DType, Mask, Packed, concatenate};
use crate::kernels::Kernels;

/// How operations are computed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ops {
    /// Our kernels, which take float32 activations; none where MLX computes everything.
    kernels: Option<Kernels>,
}

/// Masks of sliding windows, for MLX's attention; the layers of a pass share them.
#[derive(Debug, Default)]
pub(super) struct Masks(HashMap<(usize, usize, usize), Array>);

impl Ops {
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
    pub(super) fn rms_norm(&self, x: &Array, weight: &Array, epsilon: f32) -> Result<Array> {
        match self.kernels {
            Some(kernels) => kernels.rms_norm(x, Some(weight), epsilon),
            None => x.rms_norm(Some(weight), epsilon)?.astype(x.dtype()?),
        }
    }

    /// The natural log probabilities (`[rows, n]`) of `tokens` (`[rows, n]`) by the softmax of `logits` (`[rows, vocabulary]`,
    /// float32).
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

    /// Queries or keys (`[tokens, heads, head_dim]`) turned by the cosines and sines (`[tokens, 1, pairs]`, float32) of their
    /// positions: element `i` of the first `2 · pairs` together with element `i + pairs`, in float32.
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

    /// Attention of queries (`[tokens, heads, head_dim]`) over what they see: `[tokens, heads · head_dim]`, in their type.
    pub(super) fn attention(
        &self,
        queries: &Array,
        visible: &Visible,
        scale: f32,
        masks: &mut Masks,
    ) -> Result<Array> {
        let (tokens, width) = (queries.dim(0), queries.dim(1) * queries.dim(2));
        let Visible { keys, values, order } = visible;
        if let Some(kernels) = self.kernels {
            // The one query that sees all keys is of the last position, whatever their order.
            let window = if let Order::Window(window) = order { Some(*window) } else { None };
            return kernels.attention(queries, keys, values, scale, window)?.reshape(&[tokens, width]);
        }
        let dtype = queries.dtype()?;
        let mask = match *order {
            Order::All => Mask::None,
            Order::Causal => Mask::Causal,
            Order::Window(window) => Mask::Array(masks.get(tokens, keys.dim(2), window)?),
        };
        let queries = queries.transpose(&[1, 0, 2])?.expand_dims(&[0])?;
        let attended = queries.attention(&keys.astype(dtype)?, &values.astype(dtype)?, scale, mask, None)?;
        attended.transpose(&[0, 2, 1, 3])?.reshape(&[tokens, width])
    }
}

impl Masks {
    /// Which of `seen` keys each of `queries` queries sees (`[queries, seen]` booleans), the last ones being of the same position:
    /// its own and those before, `window` in all.
    fn get(&mut self, queries: usize, seen: usize, window: usize) -> Result<&Array> {
        use std::collections::hash_map::Entry;
        match self.0.entry((queries, seen, window)) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => Ok(entry.insert(window_mask(queries, seen, window)?)),
        }
    }
}

fn window_mask(queries: usize, seen: usize, window: usize) -> Result<Array> {
    let count = |n: usize| {
        i32::try_from(n)
            .map_err(|_| Error::new(ErrorKind::Internal, "step", "a sequence is too long to be masked"))
    };
    let (queries, seen, window) = (count(queries)?, count(seen)?, count(window)?);
    let own = Array::arange(seen - queries, seen, DType::I32)?.expand_dims(&[1])?;
    let keys = Array::arange(0, seen, DType::I32)?.expand_dims(&[0])?;
    let first = own.subtract(&Array::from_slice(&[window], &[1, 1])?)?;
    keys.less_equal(&own)?.logical_and(&keys.greater(&first)?)
}

/// The rows `tokens` of an embedding table, in type `dtype`.
pub(super) fn embed(table: &Weight, tokens: &Array, dtype: DType) -> Result<Array> {
    match table {
        Weight::Dense(values) => values.take(tokens, 0)?.astype(dtype),
        Weight::Packed(packed) => {
            let rows = Packed {
                words: packed.words.take(tokens, 0)?,
                scales: packed.scales.take(tokens, 0)?,
                biases: packed.biases.as_ref().map(|biases| biases.take(tokens, 0)).transpose()?,
                ..*packed
            };
            dequantize(&rows, dtype)
        }
    }
}

/// The values of a packed matrix in type `dtype`.
pub(super) fn dequantize(packed: &Packed, dtype: DType) -> Result<Array> {
    if packed.mode != QuantizationMode::Affine {
        return packed.dequantize(dtype);
    }
    // MLX computes in the scales' type, and rounds to it.
    let wide = Packed {
        words: packed.words.clone(),
        scales: packed.scales.astype(dtype)?,
        biases: packed.biases.as_ref().map(|biases| biases.astype(dtype)).transpose()?,
        ..*packed
    };
    wide.dequantize(dtype)
}

/// The activation of `x`, in its type.
///
/// `Gelu` is x·Φ(x) and `GeluTanh` its approximation by tanh (arXiv:1606.08415), as transformers' `ACT2FN` names them.
fn activate(activation: Activation, x: &Array) -> Result<Array> {
    match activation {
        Activation::Silu => x.multiply(&x.sigmoid()?),
        Activation::Relu => x.maximum(&Array::scalar(0.0, x.dtype()?)?),
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
        other => Err(Error::unsupported("load model", "this activation is not computed")
            .with_context("activation", format_args!("{other:?}"))),
    }
}

#[cfg(test)]
mod tests;
