//! The engine's own type: what is asked of it, and where the programs of a model come from.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

use mlxcel_core::{Backend, Faults, LoadOptions, Model, ModelSource, OptionSupport, Result};
use mlxcel_graph::{GraphModel, KvCacheType, ProgramWriter, model_info};
use mlxcel_iree_target::{CompileBackends, CompileTarget, DeviceDescription, ProgramOptions};
use mlxcel_models::{Checkpoint, FeatureSet};

use crate::affinity::Affinity;
use crate::bundle::{Bundle, Offer, Trust};
use crate::engine::{IreeExecutor, ProgramSource, Programs, weights};
use crate::ffi::{Device, DeviceOptions, Driver};
use crate::profile::Profiler;

/// The name of this engine.
const NAME: &str = "iree";

/// The IREE engine: decoder graphs, compiled for this machine's processor when a model is first opened, and kept compiled in a
/// cache on disk.
///
/// Opening a model needs the IREE compiler, `iree-compile` of release 3.13.0, unless all of
/// its programs are in the cache. It is looked for, in this order: at [`with_compiler`](Self::with_compiler), in
/// `MLXCEL_IREE_COMPILER`, in `IREE_DIST`, in the absolute folders of `PATH`, in the active Python environment, among the packages of
/// the Python on `PATH` and the user's (`pip install iree-base-compiler==3.13.0`). The search reads folders and starts no program;
/// nothing is looked for in the working directory. Compiled programs are kept in [`with_cache_dir`](Self::with_cache_dir), else in
/// `MLXCEL_CACHE_DIR`, else in the platform's cache folder.
///
/// Programs are compiled for the device's own processor, unless [`with_compile_target`](Self::with_compile_target) or the
/// environment says otherwise: `MLXCEL_COMPILE_TARGET` names a [`CompileTarget`] such as `llvm-cpu:x86-64-v3`, or its
/// architecture only, of the backend that `MLXCEL_COMPILE_BACKEND` names.
///
/// A folder with a [bundle](crate::bundle) in it that is [trusted](Self::with_trusted_bundle) or that this machine wrote, or
/// [`with_bundle`](Self::with_bundle), needs none of this: its programs are there, nothing is compiled and nothing is written.
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
    pub(crate) programs: ProgramOptions,
    #[cfg(feature = "compile")]
    pub(crate) toolchain: mlxcel_iree_compile::Toolchain,
    bundle: Option<PathBuf>,
    trust: Trust,
    profiler: Option<Profiler>,
    affinity: Affinity,
    faults: Option<Faults>,
}

impl IreeBackend {
    /// The engine with compiler and cache found as its documentation says.
    pub fn new() -> Self {
        Self::default()
    }

    /// Compiles for `target` instead of what the environment names (`MLXCEL_COMPILE_BACKEND`, `MLXCEL_COMPILE_TARGET`) or the
    /// device itself is. Loading a model is an error where the device does not run what is compiled for the target.
    #[must_use]
    pub fn with_compile_target(mut self, target: CompileTarget) -> Self {
        self.programs.target = Some(target);
        self
    }

    /// Resolves targets with these backends instead of [`CompileBackends::builtin`].
    #[must_use]
    pub fn with_compile_backends(mut self, backends: CompileBackends) -> Self {
        self.programs.backends = backends;
        self
    }

    /// Takes programs from the bundle in `folder`, which was written without weights, for the checkpoints that are loaded.
    /// Loading another checkpoint than the bundle's is an error. To name it is to trust it: its programs are machine code.
    #[must_use]
    pub fn with_bundle(mut self, folder: impl Into<PathBuf>) -> Self {
        self.bundle = Some(folder.into());
        self
    }

    /// Runs the programs of the bundle in `folder` when the model in it is loaded. Programs are machine code: trust a folder whose
    /// writer you would take a library from, such as one that ships with your application. May be called for several folders.
    ///
    /// Bundles that this machine wrote with the same cache need it not. The programs of any other bundle are left alone: what its
    /// model needs is compiled, and where there is no compiler, loading it is an error.
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

    /// Runs the programs of the bundle whose manifest, `bundle.json`, has this SHA-256 (64 hexadecimal digits, as `sha256sum` prints them),
    /// wherever it lies: for an application that knows the bundle that it ships. The manifest has the checksums of all programs.
    #[must_use]
    pub fn with_trusted_manifest(mut self, sha256: impl AsRef<str>) -> Self {
        self.trust.add_manifest(sha256.as_ref());
        self
    }

    /// Notes in `profiler` where the time of steps goes, on the devices that are the processor; on others loading a model is an
    /// error.
    #[must_use]
    pub fn with_profiler(mut self, profiler: &Profiler) -> Self {
        self.profiler = Some(profiler.clone());
        self
    }

    /// Keeps keys and values in another type than that of the precision. [`KvCacheType::Int8`] takes about half of what bfloat16
    /// does, so sequences may be twice as long and a step reads half as much of them, at a loss of accuracy that the architecture's
    /// documentation states. It needs a processor to run on; a bundle has the type that it was written with.
    #[must_use]
    pub fn with_kv_cache(mut self, kv_cache: KvCacheType) -> Self {
        self.programs.kv_cache = kv_cache;
        self
    }

    /// Places the worker threads of `local-task`: on the CPUs that `affinity` says, and as many of them where
    /// [`LoadOptions::threads`] does not say. Loading a model is an error for CPUs that the process may not use, and where threads
    /// cannot be placed: on other systems than Linux and on other devices.
    #[must_use]
    pub fn with_affinity(mut self, affinity: Affinity) -> Self {
        self.affinity = affinity;
        self
    }

    /// Has the device fail as `faults` say, for tests.
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
        let checkpoint = Checkpoint::from_source(source);
        let checkpoint = Arc::new(match &bundle {
            Some(bundle) => checkpoint.map_err(|error| bundle.explain_missing_weights(source, error))?,
            None => checkpoint?,
        });
        let decoder = checkpoint.decoder()?;
        decoder.require(&FeatureSet::all(), NAME)?;
        let drivers = Driver::KNOWN.map(Driver::name);
        OptionSupport::new(decoder.context_length, 1).with_devices(&drivers).check(options)?;
        let driver = options.device.as_deref().map(Driver::from_str).transpose()?.unwrap_or_default();
        let (graph, programs) = match bundle {
            Some(bundle) => {
                bundle.check_model(&checkpoint, &decoder)?;
                let graph = bundle.graph_options(options, self.programs.kv_cache)?;
                let device = DeviceDescription::of_driver(driver.name());
                let ProgramOptions { target, backends, .. } = &self.programs;
                let target = bundle.choose_target(backends, target.as_ref(), &device)?;
                let programs = bundle.programs(target, &graph, &decoder)?;
                (graph, Box::new(programs) as Box<dyn ProgramSource>)
            }
            None => self.compiled(&decoder, options, driver.name())?,
        };
        let prepared = graph.prepared_programs(&decoder, options.prepare)?;
        let device = Device::open(&DeviceOptions {
            driver,
            threads: options.threads,
            affinity: self.affinity.clone(),
            profile: self.profiler.is_some(),
            faults: self.faults.clone(),
        })?;
        tracing::debug!(device = %driver, %programs, threads = device.threads(), "opened the device");
        let writer = ProgramWriter::new(decoder.clone(), &graph)?;
        let programs = Programs::new(device.clone(), programs, writer, options.progress.clone());
        let compile_time = programs.prepare_together(&prepared, options.cancel.as_ref())?;
        let weights = match programs.laid_out()? {
            Some(laid_out) => weights::in_place(&device, &laid_out, programs.weights(), options)?,
            None => {
                weights::on_device(&device, &checkpoint, programs.weights(), &programs.layouts()?, options)?
            }
        };

        let mut info = model_info(NAME, &checkpoint, &decoder);
        info.compile_time = compile_time;
        info.load_time = started.elapsed();
        let executor = IreeExecutor::new(device, programs, weights).with_profiler(self.profiler.clone());
        Ok(Arc::new(GraphModel::new(executor, &decoder, info, &graph)?))
    }
}

impl Backend for IreeBackend {
    fn name(&self) -> &str {
        NAME
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
                tracing::warn!(
                    "the model's folder has a bundle that is not trusted: its programs are not used"
                );
                self.load_with(None, source, options).map_err(|error| bundle.explain(error))
            }
        }
    }
}
