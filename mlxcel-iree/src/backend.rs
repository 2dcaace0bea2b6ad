//! The engine's type and options.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

#[cfg(doc)]
use mlxcel_core::ModelInfo;
use mlxcel_core::{Backend, Faults, LoadOptions, MemoryEstimate, Model, ModelSource, OptionSupport, Result};
use mlxcel_graph::{GraphModel, GraphModelOptions, KvCacheType, ProgramWriter, model_info};
use mlxcel_iree_kernels::{for_gpus, for_kernels};
use mlxcel_iree_runtime::{Affinity, Constants, Device, DeviceOptions, Driver};
use mlxcel_iree_target::{CompileBackends, CompileTarget, ProgramOptions};
use mlxcel_models::{Checkpoint, Feature, FeatureSet};

use crate::devices::{self, DeviceName};
use crate::engine::{IreeExecutor, ProgramSource, Programs, weights};
use crate::profile::Profiler;
use crate::shipped::{Bundle, Offer, Trust};

/// The name of this engine.
const NAME: &str = "iree";

/// The IREE engine: compiles decoder graphs for this machine's processor when a model is first opened, and
/// caches the compiled programs on disk.
///
/// Opening a model needs the IREE compiler, `iree-compile` of release 3.13.0 (`pip install
/// iree-base-compiler==3.13.0`), unless all of its programs are cached. The search order is
/// [`with_compiler`](Self::with_compiler), `MLXCEL_IREE_COMPILER`, `IREE_DIST`, the absolute folders of
/// `PATH`, the active Python environment, and the packages of the Python on `PATH` and of the user. The
/// search only reads folders, never starts a program, and never looks in the working directory. The cache is
/// in [`with_cache_dir`](Self::with_cache_dir), else `MLXCEL_CACHE_DIR`, else the platform's cache folder.
///
/// Programs are compiled for the host's processor by default. Set another target with
/// [`with_compile_target`](Self::with_compile_target) or the environment: `MLXCEL_COMPILE_TARGET` is a
/// [`CompileTarget`] such as `llvm-cpu:x86-64-v3`, or only its architecture if `MLXCEL_COMPILE_BACKEND` names
/// the backend.
///
/// A folder with a [bundle](crate::bundle) that is [trusted](Self::with_trusted_bundle) or was written by
/// this machine needs no compiler and no cache, and neither does [`with_bundle`](Self::with_bundle): it
/// contains the compiled programs.
///
/// [`LoadOptions::device`] is `local-task` (the default: [`LoadOptions::threads`] worker threads, defaulting
/// to one per core), `local-sync` (on the calling thread), or a GPU: [`devices`](crate::devices) lists them,
/// and [`ModelInfo::device`] is the one in use. Programs for a GPU are compiled for its own properties by
/// default.
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
    pub(crate) programs: ProgramOptions,
    #[cfg(feature = "compile")]
    pub(crate) toolchain: mlxcel_iree_compile::Toolchain,
    bundle: Option<PathBuf>,
    trust: Trust,
    profiler: Option<Profiler>,
    pub(crate) affinity: Affinity,
    faults: Option<Faults>,
}

impl IreeBackend {
    /// Creates the engine with default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Compiles for `target` instead of the target in the environment (`MLXCEL_COMPILE_BACKEND`,
    /// `MLXCEL_COMPILE_TARGET`) or the host. Loading a model fails if the device cannot run programs of the
    /// target.
    #[must_use]
    pub fn with_compile_target(mut self, target: CompileTarget) -> Self {
        self.programs.target = Some(target);
        self
    }

    /// Sets the compile backends that resolve targets; defaults to [`CompileBackends::builtin`].
    #[must_use]
    pub fn with_compile_backends(mut self, backends: CompileBackends) -> Self {
        self.programs.backends = backends;
        self
    }

    /// Uses the programs of the bundle in `folder`, written without weights, for the checkpoint that is
    /// loaded. Loading a checkpoint other than the bundle's fails. Only name bundles that you trust:
    /// programs are machine code.
    #[must_use]
    pub fn with_bundle(mut self, folder: impl Into<PathBuf>) -> Self {
        self.bundle = Some(folder.into());
        self
    }

    /// Trusts the bundle in `folder` to run its programs. Programs are machine code: trust only folders whose
    /// author you would accept a library from, such as those shipped with your application. Can be called
    /// for several folders.
    ///
    /// Bundles written on this machine with the same cache are trusted already. Programs of any other bundle
    /// are ignored: the model is compiled, and loading fails without a compiler.
    ///
    /// ```no_run
    /// # use mlxcel_core::{Backend, LoadOptions};
    /// let folder = "models/story-bundle";
    /// let engine = mlxcel_iree::IreeBackend::new().with_trusted_bundle(folder);
    /// let model = engine.load(&folder.into(), &LoadOptions::default())?;
    /// # Ok::<(), mlxcel_core::Error>(())
    /// ```
    #[must_use]
    pub fn with_trusted_bundle(mut self, folder: impl Into<PathBuf>) -> Self {
        self.trust.add(folder.into());
        self
    }

    /// Trusts the bundle whose manifest, `bundle.json`, has this SHA-256 (64 hexadecimal digits, as printed
    /// by `sha256sum`), in any folder: for applications that know the bundle they ship. The manifest
    /// contains the checksums of all programs.
    #[must_use]
    pub fn with_trusted_manifest(mut self, sha256: impl AsRef<str>) -> Self {
        self.trust.add_manifest(sha256.as_ref());
        self
    }

    /// Records where the time of steps goes in `profiler`. Supported on CPU devices; on others loading a
    /// model fails.
    #[must_use]
    pub fn with_profiler(mut self, profiler: &Profiler) -> Self {
        self.profiler = Some(profiler.clone());
        self
    }

    /// Sets the element type of the KV cache, which defaults to that of the precision. [`KvCacheType::Int8`]
    /// takes about half the memory of bfloat16, so sequences may be twice as long and a step reads half
    /// as much, at a loss of accuracy that the book's page on precision states. It is supported on CPUs
    /// only; a bundle keeps the type it was written with.
    #[must_use]
    pub fn with_kv_cache(mut self, kv_cache: KvCacheType) -> Self {
        self.programs.kv_cache = kv_cache;
        self
    }

    /// Sets the maximum number of prompt tokens per pass; defaults to 128 on CPUs with kernels and to 64
    /// elsewhere.
    ///
    /// Every chunk size is a program to compile. With 16 or fewer there is one size, so opening a model
    /// compiles less; larger chunks read long prompts faster. Loading a model fails for fewer than two
    /// tokens. A bundle keeps the size it was written with.
    #[must_use]
    pub fn with_prefill_chunk(mut self, tokens: usize) -> Self {
        self.programs.prefill_chunk = Some(tokens);
        self
    }

    /// Sets the CPU affinity of the worker threads of `local-task`, and their number unless
    /// [`LoadOptions::threads`] is set. Loading a model fails for CPUs that the process may not use, on
    /// other systems than Linux, and on other devices.
    #[must_use]
    pub fn with_affinity(mut self, affinity: Affinity) -> Self {
        self.affinity = affinity;
        self
    }

    /// Injects device faults by `faults`, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn with_faults(mut self, faults: Faults) -> Self {
        self.faults = Some(faults);
        self
    }

    /// Loads a model with the programs of `bundle`, or with compiled ones.
    fn load_with(
        &self,
        bundle: Option<Bundle>,
        source: &ModelSource,
        options: &LoadOptions,
    ) -> Result<Arc<dyn Model>> {
        let started = Instant::now();
        let checkpoint = Checkpoint::for_options(source, options);
        let checkpoint = Arc::new(match &bundle {
            Some(bundle) => checkpoint.map_err(|error| bundle.explain_missing_weights(source, error))?,
            None => checkpoint?,
        });
        let decoder = checkpoint.decoder_for(options)?;
        decoder.require(&FeatureSet::all(), NAME)?;
        let mut names = Driver::KNOWN.map(Driver::name).to_vec();
        // One of several devices of a driver is looked up when it is opened.
        names.extend(options.device.as_deref().filter(|name| name.contains(':')));
        let support = OptionSupport::new(decoder.context_length, 1).with_devices(&names);
        support.with_adapters().with_draft_heads().check(options)?;
        let name = DeviceName::of(options)?;
        if name.driver == Driver::Cuda {
            decoder.require(&features_on_cuda(), "iree on the device cuda")?;
        }
        let device = devices::open(&DeviceOptions {
            driver: name.driver,
            device: name.device,
            threads: options.threads,
            affinity: self.affinity.clone(),
            profile: self.profiler.is_some(),
            faults: self.faults.clone(),
        })?;
        let (graph, programs) = match bundle {
            Some(bundle) => {
                bundle.check_model(&checkpoint, &decoder)?;
                let mut graph = bundle.graph_options(options, self.programs.kv_cache)?;
                let ProgramOptions { target, backends, .. } = &self.programs;
                let target = bundle.choose_target(backends, target.as_ref(), device.description())?;
                graph.independent_rows = bundle.independent_rows(target, backends, &decoder, &graph)?;
                let programs = bundle.programs(target, &graph, &decoder)?;
                (graph, Box::new(programs) as Box<dyn ProgramSource>)
            }
            None => self.compiled(&decoder, options, device.description())?,
        };
        let prepared = graph.prepared_programs(&decoder, options.prepare)?;
        tracing::debug!(device = device.name(), %programs, threads = device.threads(), "opened the device");
        let writer = ProgramWriter::new(decoder.clone(), &graph)?;
        let programs = Programs::new(device.clone(), programs, writer, options.progress.clone());
        programs.check_device(options.cancel.as_ref())?;
        let load_weights = || self.weights(&device, &checkpoint, &programs, options);
        let (compile_time, weights) =
            programs.prepare_for_load(&prepared, options.cancel.as_ref(), load_weights)?;

        let mut info = model_info(NAME, &checkpoint, &decoder);
        info.device = device.name().to_owned();
        info.compile_time = compile_time;
        info.load_time = started.elapsed();
        let executor = IreeExecutor::new(device, programs, weights)?.with_profiler(self.profiler.clone());
        Ok(Arc::new(GraphModel::new(executor, &decoder, info, &graph)?))
    }

    /// The weights as `programs` take them: those of a bundle, those in the cache, or a copy on the device.
    fn weights(
        &self,
        device: &Device,
        checkpoint: &Arc<Checkpoint>,
        programs: &Programs,
        options: &LoadOptions,
    ) -> Result<Constants> {
        if let Some(laid_out) = programs.laid_out()? {
            return weights::in_place(device, &laid_out, programs.weights(), options);
        }
        match self.kept_weights(device, checkpoint, programs, options)? {
            Some(kept) => Ok(kept),
            None => weights::on_device(device, checkpoint, programs.weights(), &programs.layouts()?, options),
        }
    }
}

/// What programs for CUDA compute right: with recurrent states some give wrong numbers.
fn features_on_cuda() -> FeatureSet {
    let recurrent = [
        Feature::CompressedAttention,
        Feature::DeltaRule,
        Feature::GeneralizedDeltaRule,
        Feature::SelectiveScan,
        Feature::ShortConvolution,
        Feature::StateSpace,
    ];
    recurrent.into_iter().fold(FeatureSet::all(), FeatureSet::without)
}

impl Backend for IreeBackend {
    fn name(&self) -> &str {
        NAME
    }

    fn estimate(&self, source: &ModelSource, options: &LoadOptions) -> Result<MemoryEstimate> {
        let decoder = Checkpoint::for_options(source, options)?.decoder_for(options)?;
        // Chunks are the largest that any target of the kind of device has.
        let name = DeviceName::of(options)?;
        let largest = if name.driver.is_local() { for_kernels } else { for_gpus };
        let mut graph = largest(GraphModelOptions::from(options));
        graph.kv_cache = self.programs.kv_cache;
        if let Some(tokens) = self.programs.prefill_chunk {
            graph.limit_chunks(tokens);
        }
        graph.memory(&decoder)
    }

    fn load(&self, source: &ModelSource, options: &LoadOptions) -> Result<Arc<dyn Model>> {
        let offer = match &self.bundle {
            Some(folder) => Offer::Trusted(Box::new(Bundle::open(folder)?)),
            None => self.trust.offer(source, |manifest| self.wrote(manifest))?,
        };
        match offer {
            Offer::None => self.load_with(None, source, options),
            Offer::Trusted(bundle) => self.load_with(Some(*bundle), source, options),
            Offer::Untrusted(bundle) => {
                tracing::warn!("the model's folder contains an untrusted bundle: its programs are not used");
                self.load_with(None, source, options).map_err(|error| bundle.explain(error))
            }
        }
    }
}
