//! The engine: a [`Backend`] that compiles decoder graphs with IREE and runs them with weights and KV caches on the device.

mod executor;
mod programs;
mod weights;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

use mlxcel_core::{Backend, LoadOptions, Model, ModelSource, Result};
use mlxcel_graph::{GraphModel, GraphModelOptions, Numerics, model_info};
use mlxcel_models::Checkpoint;

use crate::artifact::Artifacts;
use crate::backend::{CompileBackends, TargetChoice, default_backend};
use crate::cache::Cache;
use crate::ffi::{Device, DeviceOptions, Driver};
use crate::target::{CompileTarget, DeviceDescription};
use executor::IreeExecutor;
use programs::Programs;

/// The name of this engine.
const NAME: &str = "iree";

/// The IREE engine: decoder graphs, compiled for this machine's processor when a model is first opened, and kept compiled in a
/// cache on disk.
///
/// Opening a model needs the IREE compiler, `iree-compile` of release 3.13.0, unless all of
/// its programs are in the cache. It is looked for, in this order: at [`with_compiler`](Self::with_compiler), in
/// `MLXCEL_IREE_COMPILER`, in `IREE_DIST`, in the workspace's `.toolchain`, on `PATH`, in the active Python
/// (`pip install iree-base-compiler==3.13.0`). Compiled programs are kept in [`with_cache_dir`](Self::with_cache_dir), else in
/// `MLXCEL_CACHE_DIR`, else in the platform's cache folder.
///
/// Programs are compiled for the device's own processor, unless [`with_compile_target`](Self::with_compile_target) or the
/// environment says otherwise: `MLXCEL_COMPILE_TARGET` names a [`CompileTarget`] such as `llvm-cpu:x86-64-v3`, or its
/// architecture only, of the backend that `MLXCEL_COMPILE_BACKEND` names.
///
/// [`LoadOptions::device`] is `local-task` (the default: worker threads, one for each core unless
/// [`LoadOptions::threads`] says otherwise) or `local-sync` (on the calling thread).
///
/// ```no_run
/// use mlxcel_core::{Backend, LoadOptions, Precision};
///
/// let engine = mlxcel_iree::IreeBackend::new();
/// let options = LoadOptions::default().with_precision(Precision::Exact).with_threads(2);
/// let model = engine.load(&"models/llama".into(), &options)?;
/// println!("{}", model.capabilities());
/// # Ok::<(), mlxcel_core::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct IreeBackend {
    compiler: Option<PathBuf>,
    cache_dir: Option<PathBuf>,
    cache_size: Option<u64>,
    compile_target: Option<CompileTarget>,
    compile_backends: CompileBackends,
}

impl IreeBackend {
    /// The engine with compiler and cache found as its documentation says.
    pub fn new() -> Self {
        Self::default()
    }

    /// Compiles with the `iree-compile` at `path`.
    #[must_use]
    pub fn with_compiler(mut self, path: impl Into<PathBuf>) -> Self {
        self.compiler = Some(path.into());
        self
    }

    /// Keeps compiled programs in the folder `path`; it is then an error when that cannot be written.
    #[must_use]
    pub fn with_cache_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.cache_dir = Some(path.into());
        self
    }

    /// Keeps up to `bytes` of compiled programs, instead of what `MLXCEL_CACHE_SIZE` says, or
    /// [`DEFAULT_LIMIT`](crate::cache::DEFAULT_LIMIT).
    #[must_use]
    pub fn with_cache_size(mut self, bytes: u64) -> Self {
        self.cache_size = Some(bytes);
        self
    }

    /// Compiles for `target` instead of what the environment names (`MLXCEL_COMPILE_BACKEND`, `MLXCEL_COMPILE_TARGET`) or the
    /// device itself is. Loading a model is an error where the device does not run what is compiled for the target.
    #[must_use]
    pub fn with_compile_target(mut self, target: CompileTarget) -> Self {
        self.compile_target = Some(target);
        self
    }

    /// Resolves targets with these backends instead of [`CompileBackends::builtin`].
    #[must_use]
    pub fn with_compile_backends(mut self, backends: CompileBackends) -> Self {
        self.compile_backends = backends;
        self
    }

    fn cache(&self) -> Result<Cache> {
        let cache = Cache::open(self.cache_dir.as_deref())?;
        Ok(match self.cache_size {
            Some(bytes) => cache.with_limit(bytes),
            None => cache,
        })
    }
}

impl Backend for IreeBackend {
    fn name(&self) -> &str {
        NAME
    }

    fn load(&self, source: &ModelSource, options: &LoadOptions) -> Result<Arc<dyn Model>> {
        let started = Instant::now();
        let checkpoint = Arc::new(Checkpoint::from_source(source)?);
        let decoder = checkpoint.decoder()?;
        let graph = GraphModelOptions::from(options);
        let numerics = Numerics::new(options.precision, &decoder)?;
        let first_programs = graph.first_programs(&decoder)?;
        let driver = options.device.as_deref().map(Driver::from_str).transpose()?.unwrap_or_default();
        let target = TargetChoice::of_environment()?.select(
            &self.compile_backends,
            self.compile_target.as_ref(),
            default_backend(driver.name()),
        )?;
        target.check_device(&DeviceDescription::of_driver(driver.name()))?;
        let device = Device::open(&DeviceOptions { driver, threads: options.threads })?;

        tracing::debug!(device = %driver, %target, threads = device.threads(), "opened the device");
        let artifacts = Artifacts::new(self.compiler.clone(), self.cache()?);
        let programs = Programs::new(
            device.clone(),
            decoder.clone(),
            numerics,
            target,
            artifacts,
            options.progress.clone(),
        );
        let compile_time = programs.prepare_all(&first_programs, options.cancel.as_ref())?;
        let weights = weights::on_device(&device, &checkpoint, &decoder, options)?;

        let mut info = model_info(NAME, &checkpoint, &decoder);
        info.compile_time = compile_time;
        info.load_time = started.elapsed();
        let executor = IreeExecutor::new(device, programs, weights, decoder.vocabulary_size);
        Ok(Arc::new(GraphModel::new(executor, &decoder, info, &graph)?))
    }
}
