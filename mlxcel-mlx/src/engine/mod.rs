//! The engine: a [`Backend`] that runs decoders as array programs, on a thread of their own.

mod adapters;
mod affine;
mod cache;
mod compute;
mod load;
mod model;
mod network;
mod ops;
mod options;
mod pass;
mod plan;
mod request;
mod rotary;
mod rows;
mod sampling;
mod session;
mod snapshot;
mod state;
mod thread;
mod weights;
mod worker;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use mlxcel_core::{Backend, Faults, LoadOptions, MemoryEstimate, Model, ModelSource, Result};

pub use options::WeightQuantization;

/// The name of this engine.
const NAME: &str = "mlx";

/// The MLX engine.
///
/// [`LoadOptions::device`] is `gpu` (Metal or CUDA, depending on the build of MLX; the default if there is
/// one) or `cpu`. [`LoadOptions::threads`] is the number of CPU threads and defaults to one per core.
///
/// # Precision
///
/// * `Exact`: activations, KV cache and accumulation are float32, for any weight type.
/// * `Native` on a GPU: activations and KV cache have the checkpoint's type. On a CPU activations are
///   float32, which is faster there, and only the KV cache has the checkpoint's type.
/// * `Fast` is not supported: use quantized weights for less memory and more speed, by
///   [`with_quantization`](Self::with_quantization) or in the checkpoint.
///
/// ```no_run
/// use mlxcel_core::{Backend, LoadOptions, Precision};
///
/// let engine = mlxcel_mlx::MlxBackend::new().with_prefill_chunk(128);
/// let model = engine.load(&"models/llama".into(), &LoadOptions::default().with_precision(Precision::Exact))?;
/// println!("{}", model.capabilities());
/// # Ok::<(), mlxcel_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MlxBackend {
    prefill_chunk: usize,
    look_ahead: Option<bool>,
    cpu_kernels: bool,
    expand_quantized: bool,
    quantization: Option<WeightQuantization>,
    faults: Option<Faults>,
}

impl Default for MlxBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl MlxBackend {
    /// Creates the engine with default options.
    pub fn new() -> Self {
        Self {
            prefill_chunk: 256,
            look_ahead: None,
            cpu_kernels: true,
            expand_quantized: false,
            quantization: None,
            faults: None,
        }
    }

    mlxcel_core::setters! {
        /// Sets the maximum number of prompt tokens per pass; defaults to 256, at least 1.
        ///
        /// Cancellation takes effect between passes, and decoding rows in a step with a prompt wait for its
        /// passes.
        with_prefill_chunk(tokens: usize) => prefill_chunk = tokens;
        /// Sets whether the next decoding step starts before the current token is returned. Defaults to on
        /// for GPUs and off for CPUs.
        ///
        /// The precomputed step is used if the next row feeds the chosen token with the same sampling plan,
        /// and discarded otherwise; results do not depend on it. It hides the time between steps (of the
        /// application, and of preparing a step) at the cost of one discarded step per text. On a CPU there
        /// is nothing to gain, since the same processor does both.
        with_look_ahead(on: bool) => look_ahead = Some(on);
        /// Sets whether this crate's own kernels compute matrix products, attention, norms and rotary
        /// embeddings on a CPU. Defaults to on.
        ///
        /// MLX's CPU kernels are single-threaded and slow for any type but float32; on a GPU the engine
        /// always uses MLX's kernels. Results are the same up to rounding.
        with_cpu_kernels(on: bool) => cpu_kernels = on;
        /// Sets whether quantized weights of a checkpoint are dequantized while loading. Defaults to off:
        /// kernels compute with packed weights.
        ///
        /// Dequantized weights are float32 at `Exact` precision and of the checkpoint's type otherwise, so
        /// 4-bit weights in groups of 64 take 7.1 or 3.6 times the memory. Weights quantized by
        /// [`with_quantization`](Self::with_quantization) are dequantized too, with the values that
        /// quantization left.
        with_expanded_weights(on: bool) => expand_quantized = on;
        /// Quantizes the floating-point matrices of a checkpoint (projections, embedding and head) while
        /// loading. Off by default.
        ///
        /// Matrices whose row length is not a multiple of the group size, and those that are already
        /// quantized, are left unchanged. The quantized copies are private memory of the process. The model's
        /// [fingerprint](mlxcel_core::ModelInfo::fingerprint) includes the quantization.
        with_quantization(quantization: WeightQuantization) => quantization = Some(quantization);
        /// Injects device faults by `faults`, for tests.
        #[doc(hidden)]
        with_faults(faults: Faults) => faults = Some(faults);
    }
}

impl Backend for MlxBackend {
    fn name(&self) -> &str {
        NAME
    }

    fn load(&self, source: &ModelSource, options: &LoadOptions) -> Result<Arc<dyn Model>> {
        Ok(Arc::new(load::load(self, source, options)?))
    }

    fn estimate(&self, source: &ModelSource, options: &LoadOptions) -> Result<MemoryEstimate> {
        load::estimate(self, source, options)
    }
}
