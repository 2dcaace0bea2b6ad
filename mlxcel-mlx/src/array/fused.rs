//! Matrix products, and operations that MLX has as one kernel.

use mlxcel_core::Result;

use super::{Array, size};
use crate::ffi::{self, sys};

/// Which keys a query attends to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mask<'a> {
    /// All keys.
    None,
    /// The last query attends to all, and each one before to one key fewer.
    Causal,
    /// Booleans that select keys, or floats that are added to the scores; broadcast to `[rows, heads,
    /// queries, keys]`. Floats must not be of a wider type than the queries.
    Array(&'a Array),
}

/// How positions rotate queries and keys: `mlx.core.fast.rope`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rope<'a> {
    /// How many of each head's dimensions are rotated: each of the first half with one of the second.
    pub(crate) dims: usize,
    /// `dims / 2` divisors of the position, in float32.
    pub(crate) freqs: &'a Array,
}

impl Array {
    /// The matrix product over the last two axes; the others are broadcast.
    pub(crate) fn matmul(&self, other: &Self) -> Result<Self> {
        Self::made(sys::matmul(self.tensor(), other.tensor()), "matmul")
    }

    /// `x / √(mean(x²) + eps) · weight` along the last axis, in float32 inside (Zhang and Sennrich 2019).
    pub(crate) fn rms_norm(&self, weight: Option<&Self>, eps: f32) -> Result<Self> {
        Self::made(ffi::rms_norm(self.tensor(), weight.map(Self::tensor), eps), "rms norm")
    }

    /// The product of each row (`[rows, 1, k]`) with the matrix of `other` (`[n, k, m]`) selected by
    /// `indices` (`[rows]`, `U32`); `sorted` if these ascend.
    pub(crate) fn gather_matmul(&self, other: &Self, indices: &Self, sorted: bool) -> Result<Self> {
        Self::made(sys::gather_mm(self.tensor(), other.tensor(), indices.tensor(), sorted), "gather matmul")
    }

    /// `(x − mean) / √(variance + eps) · weight + bias` along the last axis, in float32 inside (Ba et al.
    /// 2016).
    pub(crate) fn layer_norm(&self, weight: Option<&Self>, bias: Option<&Self>, eps: f32) -> Result<Self> {
        let (weight, bias) = (weight.map(Self::tensor), bias.map(Self::tensor));
        Self::made(ffi::layer_norm(self.tensor(), weight, bias, eps), "layer norm")
    }

    /// Rotary embedding of `[…, positions, head]` (Su et al. 2021), with the first position `offset`.
    pub(crate) fn rope(&self, rope: &Rope<'_>, offset: usize) -> Result<Self> {
        const OPERATION: &str = "rope";
        let (dims, offset) = (size(rope.dims, OPERATION)?, size(offset, OPERATION)?);
        Self::made(sys::rope(self.tensor(), dims, offset, rope.freqs.tensor()), OPERATION)
    }

    /// Like [`rope`](Self::rope), with the first position in an array of integers: one, or one per entry of
    /// the first axis.
    pub(crate) fn rope_at(&self, rope: &Rope<'_>, offset: &Self) -> Result<Self> {
        const OPERATION: &str = "rope";
        let dims = size(rope.dims, OPERATION)?;
        Self::made(sys::rope_at(self.tensor(), dims, offset.tensor(), rope.freqs.tensor()), OPERATION)
    }

    /// `softmax(scale · q @ kᵀ + mask) @ v`, this array being the queries: `[rows, heads, queries, head]`,
    /// with keys and values `[rows, kv_heads, keys, head]`, which several heads may share. The softmax is
    /// in float32. `sinks` are a score per head that takes part in its softmax and has no value.
    pub(crate) fn attention(
        &self,
        keys: &Self,
        values: &Self,
        scale: f32,
        mask: Mask<'_>,
        sinks: Option<&Self>,
    ) -> Result<Self> {
        let (causal, mask) = match mask {
            Mask::None => (false, None),
            Mask::Causal => (true, None),
            Mask::Array(mask) => (false, Some(mask.tensor())),
        };
        let sinks = sinks.map(Self::tensor);
        Self::made(
            ffi::attention(self.tensor(), keys.tensor(), values.tensor(), scale, causal, mask, sinks),
            "attention",
        )
    }
}
