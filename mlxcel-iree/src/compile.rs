//! The compile side: compiles programs when they are needed.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mlxcel_core::{CancelToken, LoadOptions, ModelSource, Result};
use mlxcel_graph::{GraphModelOptions, ProgramShape, ProgramWriter, WeightArgument};
use mlxcel_iree_compile::bundle::BundleOptions;
#[cfg(unix)]
use mlxcel_iree_compile::cache::WeightsKey;
use mlxcel_iree_compile::inspect::{InspectOptions, Summary};
use mlxcel_iree_compile::{ProgramCompiler, bundle, inspect};
use mlxcel_iree_kernels::{Layouts, independent_rows, suited};
use mlxcel_iree_runtime::{Constants, Device};
use mlxcel_iree_target::DeviceDescription;
use mlxcel_iree_target::manifest::Manifest;
use mlxcel_models::{Checkpoint, Decoder};

use crate::backend::IreeBackend;
use crate::devices;
#[cfg(unix)]
use crate::engine::kept;
use crate::engine::weights::in_place;
use crate::engine::{LaidOutWeights, Made, ProgramSource, Programs};

impl IreeBackend {
    /// Sets the path of `iree-compile`.
    #[must_use]
    pub fn with_compiler(mut self, path: impl Into<PathBuf>) -> Self {
        self.toolchain.compiler = Some(path.into());
        self
    }

    /// Sets the cache folder of compiled programs. Loading fails if it is not writable.
    #[must_use]
    pub fn with_cache_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.toolchain.cache_dir = Some(path.into());
        self
    }

    /// Sets the maximum size of the cache in bytes; defaults to `MLXCEL_CACHE_SIZE` or
    /// [`DEFAULT_LIMIT`](crate::cache::DEFAULT_LIMIT).
    #[must_use]
    pub fn with_cache_size(mut self, bytes: u64) -> Self {
        self.toolchain.cache_size = Some(bytes);
        self
    }

    /// Keeps the weights of a model of at least so many bytes in the cache, in the order that its programs
    /// read them; `u64::MAX` keeps none. Defaults to `MLXCEL_KEEP_WEIGHTS` (`1GiB`, `off`), else 64 MiB.
    ///
    /// Who opens the model again maps them: it takes milliseconds and no private memory, and processes share
    /// the pages. It takes as much of the disk again as the checkpoint has, up to the
    /// [size of the cache](Self::with_cache_size). Weights are kept for kernels on CPUs, which read panels,
    /// and on systems of the Unix family.
    #[must_use]
    pub fn with_kept_weights(mut self, at_least: u64) -> Self {
        self.toolchain.keep_weights = Some(at_least);
        self
    }

    /// The weights of a model as its programs take them, in the cache, where they are put if they are not
    /// there; none where they are not kept.
    pub(crate) fn kept_weights(
        &self,
        device: &Device,
        checkpoint: &Checkpoint,
        programs: &Programs,
        options: &LoadOptions,
    ) -> Result<Option<Constants>> {
        let (weights, layouts) = (programs.weights(), programs.layouts()?);
        let bytes = weights.iter().map(|weight| weight.ty.bytes() as u64).sum::<u64>();
        if device.is_accelerator() || layouts.is_as_stored() || bytes < self.toolchain.keep_weights()? {
            return Ok(None);
        }
        #[cfg(unix)]
        if let Some(stamp) = checkpoint.stamp() {
            let (cache, key) = (self.toolchain.cache()?, WeightsKey::new(&stamp, weights, &layouts));
            if let Some(file) = cache.weights(&key) {
                match kept::map(&file, weights) {
                    Ok(laid_out) => return in_place(device, &laid_out, weights, options).map(Some),
                    Err(error) => tracing::warn!(%error, "kept weights could not be mapped"),
                }
            } else if let Some(new) = cache.keep_weights(&key) {
                let made =
                    kept::keep(new, device.threads(), (checkpoint, &stamp), weights, &layouts, options)?;
                // All progress has been reported.
                let mut quiet = options.clone();
                quiet.progress = None;
                return made.map(|laid_out| in_place(device, &laid_out, weights, &quiet)).transpose();
            }
        }
        Ok(None)
    }

    /// Whether the bundle with this manifest was written with the cache.
    pub(crate) fn wrote(&self, manifest: &[u8]) -> Result<bool> {
        Ok(bundle::is_recorded(&self.toolchain.cache()?, manifest))
    }

    /// Programs that are compiled as they are needed, and what sessions over them do.
    pub(crate) fn compiled(
        &self,
        decoder: &Decoder,
        options: &LoadOptions,
        device: &DeviceDescription,
    ) -> Result<(GraphModelOptions, Box<dyn ProgramSource>)> {
        let mut graph = GraphModelOptions::from(options);
        graph.kv_cache = self.programs.kv_cache;
        let target = self.programs.resolve(None, device)?;
        target.check_device(device)?;
        graph = suited(graph, decoder, &[target.hardware()?]);
        if let Some(tokens) = self.programs.prefill_chunk {
            graph.limit_chunks(tokens);
        }
        graph.independent_rows = independent_rows(decoder, target.hardware()?, &graph)?;
        let writer = ProgramWriter::new(decoder.clone(), &graph)?;
        let compiler = ProgramCompiler::new(writer, target, self.toolchain.artifacts()?)?;
        Ok((graph, Box::new(Compiled(compiler))))
    }
}

/// Programs that the compiler makes, or once made.
pub(crate) struct Compiled(pub(crate) ProgramCompiler);

impl ProgramSource for Compiled {
    fn layouts(&self) -> Result<Layouts> {
        self.0.layouts().cloned()
    }

    fn laid_out(&self, _: &[WeightArgument]) -> Result<Option<LaidOutWeights>> {
        Ok(None)
    }

    fn takes_long(&self) -> bool {
        true
    }

    fn device_check(&self, cancel: Option<&CancelToken>) -> Result<Cow<'static, [u8]>> {
        Ok(Cow::Owned(self.0.device_check(cancel)?.bytes))
    }

    fn program(&self, shape: &ProgramShape, cancel: Option<&CancelToken>) -> Result<Made> {
        let artifact = self.0.compile(shape, cancel)?;
        let compile_time = if artifact.compiled { artifact.elapsed } else { Duration::ZERO };
        Ok(Made { vmfb: Cow::Owned(artifact.bytes), compile_time })
    }
}

impl fmt::Display for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "compiled for {}", self.0.target())
    }
}

/// Writes a bundle of the model in `source` to the folder `destination`, compiled with the options of
/// `engine`, and returns its manifest.
///
/// The folder is written atomically, via a temporary name next to it. Cross-compiling needs nothing from the
/// target machine. Engines with the same cache [trust](IreeBackend::with_trusted_bundle) the bundle.
///
/// ```no_run
/// use mlxcel_iree::IreeBackend;
/// use mlxcel_iree::bundle::{self, BundleOptions};
///
/// let options = BundleOptions::default().with_targets(["llvm-cpu:x86-64-v3", "llvm-cpu:x86-64-v4"]);
/// let manifest = bundle::write(&IreeBackend::new(), &"models/llama".into(), "llama-bundle", &options)?;
/// println!("{manifest}");
/// # Ok::<(), mlxcel_core::Error>(())
/// ```
///
/// # Errors
///
/// The errors of [`mlxcel_iree_compile::bundle::write`].
pub fn write_bundle(
    engine: &IreeBackend,
    source: &ModelSource,
    destination: impl AsRef<Path>,
    options: &BundleOptions,
) -> Result<Manifest> {
    let mut options = options.clone();
    for target in &mut options.targets {
        if let Some(own) = devices::own_target(target)? {
            *target = own.to_string();
        }
    }
    bundle::write(&engine.toolchain, &engine.programs, source, destination, &options)
}

/// Compiles programs of the model in `source` with the options of `engine`, writes their intermediate stages
/// to the new or empty folder `destination`, and returns a summary of a step of each.
///
/// ```no_run
/// use mlxcel_iree::IreeBackend;
/// use mlxcel_iree::inspect::{InspectOptions, inspect};
///
/// for summary in inspect(&IreeBackend::new(), &"models/llama".into(), "llama-inspected", &InspectOptions::default())? {
///     println!("{summary}");
/// }
/// # Ok::<(), mlxcel_core::Error>(())
/// ```
///
/// # Errors
///
/// The errors of [`mlxcel_iree_compile::inspect::inspect`].
pub fn inspect_programs(
    engine: &IreeBackend,
    source: &ModelSource,
    destination: impl AsRef<Path>,
    options: &InspectOptions,
) -> Result<Vec<Summary>> {
    let mut options = options.clone();
    let own = options.target.as_ref().map(|target| devices::own_target(&target.to_string())).transpose()?;
    if let Some(own) = own.flatten() {
        options.target = Some(own);
    }
    inspect::inspect(&engine.toolchain, &engine.programs, source, destination, &options)
}
