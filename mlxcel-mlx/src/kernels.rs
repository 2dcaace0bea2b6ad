//! Operations with our own CPU kernels, where MLX's are slow.
//!
//! MLX's CPU backend is single-threaded, multiplies half-precision and 4-bit weights far below memory
//! bandwidth, and composes norms, rotary embeddings and attention from several passes over memory. Our
//! operations are nodes of the same graph, created and evaluated like any other. They read weights in place
//! from the mapped checkpoint, in its type, once per step, on all threads. See ADR 0007 for measurements and
//! limits.
//!
//! Activations and accumulation are float32, and operands are not rounded: results equal float32 products up
//! to the order of summation, which depends on the number of rows and the SIMD width, but not on the number
//! of threads.

use mlxcel_core::{Error, Result};

use crate::array::{Array, Mode, Packed};
use crate::ffi::sys::Tensor;
use crate::ffi::{PackedTensor, kernels as sys};

/// The kernels, with a number of threads and an implementation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kernels(sys::KernelSettings);

impl Kernels {
    /// The kernels on up to `threads` threads (at least one), with the best instructions of this machine.
    pub(crate) fn new(threads: usize) -> Self {
        Self::of(threads, 0)
    }

    /// The kernels for each instruction set of this machine, best first, with their names.
    #[cfg(test)]
    pub(crate) fn each(threads: usize) -> Result<Vec<(String, Self)>> {
        let names = crate::ffi::check(sys::kernel_implementations(), "list kernels")?;
        Ok((0..).zip(names).map(|(index, name)| (name, Self::of(threads, index))).collect())
    }

    fn of(threads: usize, implementation: u32) -> Self {
        let threads = u32::try_from(threads).unwrap_or(u32::MAX).max(1);
        Self(sys::KernelSettings { threads, implementation })
    }

    /// `x · weightᵀ + bias`: `x` of `[…, inputs]` in float32, the weight `[outputs, inputs]` and the bias
    /// `[outputs]` in float32, float16 or bfloat16, each aligned to its elements. `[…, outputs]` in
    /// float32.
    ///
    /// # Errors
    ///
    /// [`Internal`](mlxcel_core::ErrorKind::Internal) for other types and shapes, as for all operations here.
    pub(crate) fn linear(&self, x: &Array, weight: &Array, bias: Option<&Array>) -> Result<Array> {
        let answer = sys::kernel_linear(x.tensor(), weight.tensor(), bias.map(Array::tensor), &self.0);
        Array::made(answer, "linear")
    }

    /// [`linear`](Self::linear) with a packed weight in affine quantization; see [`takes`](Self::takes).
    pub(crate) fn packed_linear(&self, x: &Array, weight: &Packed, bias: Option<&Array>) -> Result<Array> {
        let (x, parts) = (weight.by_column(x)?, affine(weight)?);
        let answer = sys::kernel_affine_linear(x.tensor(), parts, bias.map(Array::tensor), &self.0);
        Array::made(answer, PACKED)
    }

    /// Each row of `x` (`[rows, inputs]`, float32) times the transposed matrix of `weight` (`[experts,
    /// outputs, inputs]`, in the types of [`linear`](Self::linear)) selected by `experts` (`[rows]`,
    /// `U32`). Unselected matrices are not read, and adjacent rows with the same matrix read it once.
    pub(crate) fn expert_linear(&self, x: &Array, experts: &Array, weight: &Array) -> Result<Array> {
        let answer = sys::kernel_expert_linear(x.tensor(), experts.tensor(), weight.tensor(), &self.0);
        Array::made(answer, "expert linear")
    }

    /// [`expert_linear`](Self::expert_linear) with packed matrices, if [`takes`](Self::takes) supports them.
    pub(crate) fn packed_expert_linear(&self, x: &Array, experts: &Array, weight: &Packed) -> Result<Array> {
        let (x, parts) = (weight.by_column(x)?, affine(weight)?);
        let answer = sys::kernel_affine_expert_linear(x.tensor(), experts.tensor(), parts, &self.0);
        Array::made(answer, PACKED)
    }

    /// Whether [`packed_linear`](Self::packed_linear) supports such a weight.
    pub(crate) fn takes(weight: &Packed) -> bool {
        weight.mode == Mode::Affine && weight.biases.is_some()
    }

    /// Causal attention of `queries` (`[tokens, heads, dim]`, float32), those of the last positions, over
    /// `keys` and `values` (`[kv_heads, length, dim]` or `[1, kv_heads, length, dim]`, float32, float16
    /// or bfloat16), which may be parts of larger caches and are not copied: each query sees its own
    /// position and those before, at most `window` in all. `[tokens, heads, dim of values]` in float32.
    pub(crate) fn attention(
        &self,
        queries: &Array,
        keys: &Array,
        values: &Array,
        scale: f32,
        window: Option<usize>,
    ) -> Result<Array> {
        // A window beyond `i32` is longer than any cache.
        let window = window.and_then(|window| i32::try_from(window).ok()).unwrap_or(0);
        let (q, k, v) = (queries.tensor(), keys.tensor(), values.tensor());
        Array::made(sys::kernel_attention(q, k, v, scale, window, &self.0), "attention")
    }

    /// `x / √(mean(x²) + epsilon) · weight` along the last axis of `x` (float32), with `weight` in any of the
    /// types of [`linear`](Self::linear).
    pub(crate) fn rms_norm(&self, x: &Array, weight: Option<&Array>, epsilon: f32) -> Result<Array> {
        let answer = sys::kernel_rms_norm(x.tensor(), weight.map(Array::tensor), epsilon, &self.0);
        Array::made(answer, "rms norm")
    }

    /// `ln Σ eˣ` along the last axis of `x` (float32), which becomes 1.
    pub(crate) fn log_sum_exp(&self, x: &Array) -> Result<Array> {
        Array::made(sys::kernel_log_sum_exp(x.tensor(), &self.0), "log sum exp")
    }

    /// `gate · sigmoid(gate) · up`, of two float32 arrays of the same shape.
    pub(crate) fn silu_mul(&self, gate: &Array, up: &Array) -> Result<Array> {
        Array::made(sys::kernel_silu_mul(gate.tensor(), up.tensor(), &self.0), "silu")
    }

    /// Queries or keys (`[tokens, heads, dim]`) rotated by the cosines and sines (`[tokens, 1, pairs]`) of
    /// their positions: element `i` of the first `2 · pairs` with element `i + pairs`. All in float32.
    pub(crate) fn rotate(&self, x: &Array, cos: &Array, sin: &Array) -> Result<Array> {
        Array::made(sys::kernel_rotate(x.tensor(), cos.tensor(), sin.tensor(), &self.0), "rotate")
    }
}

const PACKED: &str = "packed linear";

/// The parts of a weight in affine quantization, and its biases.
fn affine(weight: &Packed) -> Result<(PackedTensor<'_>, &Tensor)> {
    match &weight.biases {
        Some(biases) if Kernels::takes(weight) => Ok((weight.tensors()?, biases.tensor())),
        _ => Err(Error::unsupported(PACKED, "only affine quantization is computed here")
            .with_context("mode", weight.mode.name())),
    }
}

#[cfg(test)]
pub(crate) mod tests;
