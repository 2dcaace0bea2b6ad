//! The operations that make up most of a decoder's work, by the fastest means there is for them.

use mlxcel_core::{Error, Result};
use mlxcel_models::{Activation, QuantizationMode};

use super::weights::Weight;
use crate::array::{Array, DType, Mask, Packed, concatenate};

/// `x · weightᵀ` for `x` of `[tokens, inputs]`, in the type of `x`.
pub(super) fn linear(x: &Array, weight: &Weight, bias: Option<&Array>) -> Result<Array> {
    let dtype = x.dtype()?;
    let product = match weight {
        Weight::Dense(values) => x.matmul(&values.astype(dtype)?.transpose(&[1, 0])?)?,
        Weight::Packed(packed) => packed.multiply(x, true)?,
    };
    let sum = match bias {
        Some(bias) => product.add(bias)?,
        None => product,
    };
    sum.astype(dtype)
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

/// Attention of queries (`[1, heads, queries, head_dim]`) over keys and values, in the type of the queries.
pub(super) fn attention(
    queries: &Array,
    keys: &Array,
    values: &Array,
    scale: f32,
    mask: Mask<'_>,
) -> Result<Array> {
    let dtype = queries.dtype()?;
    queries.attention(&keys.astype(dtype)?, &values.astype(dtype)?, scale, mask, None)
}

/// Queries or keys (`[tokens, heads, head_dim]`) turned by the cosines and sines (`[tokens, 1, pairs]`, float32) of their
/// positions: element `i` of the first `2 · pairs` together with element `i + pairs`, in float32.
pub(super) fn rotate(x: &Array, cos: &Array, sin: &Array) -> Result<Array> {
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

/// The activation of `x`, in its type.
///
/// `Gelu` is x·Φ(x) and `GeluTanh` its approximation by tanh (arXiv:1606.08415), as transformers' `ACT2FN` names them.
pub(super) fn activate(activation: Activation, x: &Array) -> Result<Array> {
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
