//! The engine: a [`Backend`] that runs decoders as array programs, on a thread of their own.

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

use mlxcel_core::{Backend, Faults, LoadOptions, Model, ModelSource, Result};

pub use options::WeightQuantization;

/// The name of this engine.
const NAME: &str = "mlx";

/// The MLX engine.
///
/// [`LoadOptions::device`] is `gpu` (Metal or CUDA, whichever the MLX that was found is built for; the default where there is one)
/// or `cpu`. [`LoadOptions::threads`] is how many threads compute on a CPU, one for each core by default.
///
/// # Precision
///
/// * `Exact`: activations, KV cache and sums are float32, whatever the weights are stored in.
/// * `Native` on a GPU: activations and KV cache are of the checkpoint's type. On a CPU that type is slow to compute with and
///   gains nothing, so activations are float32 there, and the KV cache alone is of the checkpoint's type.
/// * `Fast` is not there: quantized weights are the way to less memory and more speed, and they are named by
///   [`with_quantization`](Self::with_quantization) or by the checkpoint.
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
    /// The engine with every option at its default.
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

    /// Sets how many tokens of prompts one pass computes at most; 256 by default, at least 1.
    ///
    /// A pass is what cancelling waits for, and what decoding sequences wait for that share a step with a prompt.
    #[must_use]
    pub fn with_prefill_chunk(mut self, tokens: usize) -> Self {
        self.prefill_chunk = tokens;
        self
    }

    /// Sets whether the next decoding step is begun before the token of this one is handed out; by default it is on a GPU, and on
    /// a CPU it is not.
    ///
    /// What was begun is used where the token that was chosen is the one that is fed next, by the same sampling plan, and thrown
    /// away otherwise; no result depends on it. It hides the time between steps (the application's, and that of preparing a
    /// step) at the cost of one useless step a text. On a CPU there is next to nothing to hide, since the processor that would be
    /// idle is the one that computes.
    #[must_use]
    pub fn with_look_ahead(mut self, on: bool) -> Self {
        self.look_ahead = Some(on);
        self
    }

    /// Sets whether kernels of our own compute products, attention, norms and rotations on a CPU; on by default.
    ///
    /// MLX's own take one thread and are slow there for any type but float32; they are what this engine uses on a GPU. Both compute
    /// the same but for rounding.
    #[must_use]
    pub fn with_cpu_kernels(mut self, on: bool) -> Self {
        self.cpu_kernels = on;
        self
    }

    /// Sets whether quantized weights of a checkpoint are expanded while loading; off by default: they stay packed, and are
    /// computed with as they are.
    ///
    /// Expanded they are float32 at `Exact` precision and otherwise of the checkpoint's type, so 4-bit weights in groups of 64
    /// take 7.1 or 3.6 times their memory. Weights that [`with_quantization`](Self::with_quantization) quantizes are expanded too:
    /// the numbers that packing leaves, without its operations.
    #[must_use]
    pub fn with_expanded_weights(mut self, on: bool) -> Self {
        self.expand_quantized = on;
        self
    }

    /// Quantizes the floating-point matrices of a checkpoint (projections, embedding and head) while loading; not done by
    /// default.
    ///
    /// Matrices whose rows are no multiple of the group size stay as they are, and so do those that are quantized already. The
    /// quantized copies take memory of this process's own. The model is then another one: its
    /// [fingerprint](mlxcel_core::ModelInfo::fingerprint) names the quantization.
    #[must_use]
    pub fn with_quantization(mut self, quantization: WeightQuantization) -> Self {
        self.quantization = Some(quantization);
        self
    }

    /// Has the device fail as `faults` say, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn with_faults(mut self, faults: Faults) -> Self {
        self.faults = Some(faults);
        self
    }
}

impl Backend for MlxBackend {
    fn name(&self) -> &str {
        NAME
    }

    fn load(&self, source: &ModelSource, options: &LoadOptions) -> Result<Arc<dyn Model>> {
        load::load(self, source, options)
    }
}
