//! The engine's own type: what is asked of it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use mlxcel_core::{
    Backend, Error, ErrorKind, Faults, LoadOptions, MemoryEstimate, Model, ModelSource, OptionSupport,
    Precision, Result,
};
use mlxcel_graph::{
    Executor, FaultyExecutor, GraphModel, GraphModelOptions, KvCacheType, PreparedPrograms, ProgramShape,
    ProgramWriter, model_info,
};
use mlxcel_models::{Checkpoint, Decoder, ElementType, FeatureSet};

use crate::engine::{PjrtExecutor, Programs, on_devices};
use crate::ffi::{Client, Plugin};
use crate::locate::locate;
use crate::mesh::MeshDevices;
use crate::options::OptionValue;
use crate::parallel::weight_shardings;
use crate::platform::Platform;
use crate::profile::Profiler;
use crate::store::Store;

/// The name of this engine.
const NAME: &str = "pjrt";
/// How many tokens of a prompt a pass takes at most by default on CPUs: twice as many took twice as long on
/// XLA's.
const CPU_PREFILL_CHUNK: usize = 128;
/// The same on everything else, where passes over few tokens leave most of the device idle.
const PREFILL_CHUNK: usize = 512;

/// The PJRT engine: decoder graphs on any plugin of that interface, on one device or several.
///
/// A plugin is a shared library. It is the one at [`with_plugin`](Self::with_plugin), else the one that
/// `MLXCEL_PJRT_PLUGIN` names, else the only one among the packages of the active virtual environment
/// (`VIRTUAL_ENV`, an absolute path), which are looked at and not run. **Loading a
/// library is trusting it**: its code runs in this process. No path is ever taken from a checkpoint.
///
/// Programs are compiled by the plugin when they are first needed, and kept in
/// [`with_cache_dir`](Self::with_cache_dir), else in `pjrt` under `MLXCEL_CACHE_DIR` or the user's cache
/// folder, where the plugin serializes them.
///
/// [`LoadOptions::device`] is the number of a device of the plugin, `0` by default, of a
/// [mesh](Self::with_mesh) the first. How many threads compute is the plugin's affair:
/// [`LoadOptions::threads`] is refused.
#[derive(Clone, Debug, Default)]
pub struct PjrtBackend {
    plugin: Option<PathBuf>,
    client_options: Vec<(String, OptionValue)>,
    compile_options: Vec<(String, OptionValue)>,
    cache_dir: Option<PathBuf>,
    is_uncached: bool,
    kv_cache: KvCacheType,
    is_expanded: bool,
    prefill_chunk: Option<usize>,
    mesh: Option<usize>,
    profiler: Option<Profiler>,
    faults: Option<Faults>,
}

impl PjrtBackend {
    /// The engine with its plugin found as its documentation says.
    pub fn new() -> Self {
        Self::default()
    }

    /// Loads the plugin at `path`, which is to trust it.
    #[must_use]
    pub fn with_plugin(mut self, path: impl Into<PathBuf>) -> Self {
        self.plugin = Some(path.into());
        self
    }

    /// Passes an option to the plugin when its client is made, such as `memory_fraction` to the CUDA plugin.
    /// Which there are is the plugin's affair; it says so of those that it does not know.
    #[must_use]
    pub fn with_client_option(mut self, name: impl Into<String>, value: impl Into<OptionValue>) -> Self {
        self.client_options.push((name.into(), value.into()));
        self
    }

    /// Passes an option to the plugin's compiler, such as `xla_cpu_enable_fast_math` to XLA.
    #[must_use]
    pub fn with_compile_option(mut self, name: impl Into<String>, value: impl Into<OptionValue>) -> Self {
        self.compile_options.push((name.into(), value.into()));
        self
    }

    /// Keeps compiled programs in `folder`.
    #[must_use]
    pub fn with_cache_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.cache_dir = Some(folder.into());
        self
    }

    /// Keeps no compiled programs.
    #[must_use]
    pub fn without_cache(mut self) -> Self {
        self.is_uncached = true;
        self
    }

    mlxcel_core::setters! {
        /// Keeps keys and values in another type than that of the precision.
        with_kv_cache(kv_cache: KvCacheType) => kv_cache = kv_cache;
        /// Sets whether matrices are kept on the devices in the type that they are multiplied in, float32 for
        /// `Exact`, else that of the checkpoint's activations; off by default: they stay as they are stored,
        /// and the program unpacks and converts them in each pass. That takes less memory, and is slower
        /// where the plugin's compiler writes what it has unpacked to memory, as XLA's for CPUs does.
        with_expanded_weights(on: bool) => is_expanded = on;
        /// Computes up to this many tokens of a prompt in one pass, by default 128 on CPUs and 512 elsewhere;
        /// what remains of it goes in passes of a quarter of that where padding it would cost more. Where
        /// programs unpack or convert weights in each pass, longer ones do it less often.
        with_prefill_chunk(tokens: usize) => prefill_chunk = Some(tokens);
        /// Spreads a model over `devices` devices of the plugin: tensor-parallel by the roles of its weights,
        /// by the plugin's own partitioner. What does not divide is on each of them.
        ///
        /// Loading a model is an error where the plugin has fewer devices.
        with_mesh(devices: usize) => mesh = Some(devices);
        /// Notes in `profiler` how long passes take and what they move between devices.
        with_profiler(profiler: &Profiler) => profiler = Some(profiler.clone());
        /// Has the device fail as `faults` say, for tests.
        #[doc(hidden)]
        with_faults(faults: Faults) => faults = Some(faults);
    }

    /// Where the plugin is that this would load.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there is none, [`ErrorKind::InvalidInput`] if the environment has several
    /// and none is named.
    pub fn plugin_path(&self) -> Result<PathBuf> {
        locate(self.plugin.as_deref())
    }

    /// What the plugin and its devices are. Loads the plugin and opens its devices.
    ///
    /// # Errors
    ///
    /// Those of [`plugin_path`](Self::plugin_path), [`ErrorKind::Toolchain`] if it is not a plugin or has
    /// another version, and what the plugin says.
    pub fn platform(&self) -> Result<Platform> {
        Platform::of(&self.client()?)
    }

    fn client(&self) -> Result<Client> {
        let path: PathBuf = self.plugin_path()?;
        Client::shared(&Plugin::load(&path)?, &self.client_options)
    }

    /// The devices that `options` ask for.
    fn devices(&self, options: &LoadOptions) -> Result<MeshDevices> {
        let client = self.client()?;
        let first = options.device.as_deref().map_or(Ok(0), |device| {
            device.parse().map_err(|_| {
                let message = "a device of a PJRT plugin is named by its number";
                Error::new(ErrorKind::InvalidInput, "load model", message)
                    .with_context("field", "device")
                    .with_context("device", device)
                    .with_context("devices", client.device_count())
            })
        })?;
        MeshDevices::new(client, first, self.mesh.unwrap_or(1), &self.compile_options)
    }

    /// Everything of a model but its weights, with no program compiled.
    pub(crate) fn open(&self, source: &ModelSource, options: &LoadOptions) -> Result<Opened> {
        let checkpoint = Checkpoint::for_options(source, options)?;
        let stored = checkpoint.decoder_for(options)?;
        stored.require(&FeatureSet::all(), NAME)?;
        let device: Vec<&str> = options.device.as_deref().into_iter().collect();
        let support = OptionSupport::new(stored.context_length, GraphModelOptions::from(options).sequences);
        support.with_devices(&device).with_adapters().with_draft_heads().check(options)?;
        if options.threads.is_some() {
            let message =
                "the number of threads is up to the PJRT plugin; do not set it, or use the plugin's options";
            return Err(
                Error::new(ErrorKind::InvalidInput, "load model", message).with_context("field", "threads")
            );
        }
        let decoder =
            if self.is_expanded { stored.expanded(element(&stored, options)) } else { stored.clone() };
        let mesh = self.devices(options)?;
        let is_cpu = mesh.client.is_cpu()?;
        let graph = self.graph_options(options, if is_cpu { CPU_PREFILL_CHUNK } else { PREFILL_CHUNK });
        let PreparedPrograms { mut at_load, in_background } =
            graph.prepared_programs(&decoder, options.prepare)?;
        at_load.extend(in_background);
        tracing::debug!(plugin = ?mesh.client.plugin(), devices = mesh.count(), "opened the devices");
        let store = Store::open(self.cache_dir.as_deref(), self.is_uncached, &mesh.client)?;
        let writer = ProgramWriter::new(decoder.clone(), &graph)?;
        let shardings = weight_shardings(&decoder, &writer.weights, mesh.count());
        let programs = Programs::new(mesh, writer, shardings, store, options);
        Ok(Opened { checkpoint, stored, decoder, graph, shapes: at_load, programs })
    }

    /// What sessions do, with a default for the tokens of a pass.
    fn graph_options(&self, options: &LoadOptions, chunk: usize) -> GraphModelOptions {
        let chunk = self.prefill_chunk.unwrap_or(chunk);
        let mut graph = GraphModelOptions::from(options);
        graph.kv_cache = self.kv_cache;
        graph.chunks = vec![chunk, (chunk / 4).max(2)];
        graph
    }

    fn load_with<E: Executor>(
        &self,
        source: &ModelSource,
        options: &LoadOptions,
        run_by: impl FnOnce(PjrtExecutor) -> E,
    ) -> Result<Arc<dyn Model>> {
        let started = Instant::now();
        let Opened { checkpoint, stored, decoder, graph, shapes, programs } = self.open(source, options)?;
        let weights = on_devices(&programs, &checkpoint, &stored, options)?;
        let mut info = model_info(NAME, &checkpoint, &decoder);
        for shape in shapes {
            info.compile_time += programs.prepare(&shape, options.cancel.as_ref())?.compile_time;
        }
        info.load_time = started.elapsed();
        let executor = run_by(PjrtExecutor::new(programs, weights, self.profiler.clone())?);
        Ok(Arc::new(GraphModel::new(executor, &decoder, info, &graph)?))
    }
}

/// The type that expanded weights have.
fn element(stored: &Decoder, options: &LoadOptions) -> ElementType {
    if options.precision == Precision::Exact { ElementType::F32 } else { stored.element_type }
}

/// What [`PjrtBackend::open`] gives.
pub(crate) struct Opened {
    checkpoint: Checkpoint,
    /// The checkpoint's network, and that which programs run: the same, unless weights are expanded.
    stored: Decoder,
    decoder: Decoder,
    graph: GraphModelOptions,
    /// The programs that are wanted from the beginning.
    pub(crate) shapes: Vec<ProgramShape>,
    pub(crate) programs: Programs,
}

impl Backend for PjrtBackend {
    fn name(&self) -> &str {
        NAME
    }

    fn estimate(&self, source: &ModelSource, options: &LoadOptions) -> Result<MemoryEstimate> {
        let stored = Checkpoint::for_options(source, options)?.decoder_for(options)?;
        let decoder = if self.is_expanded { stored.expanded(element(&stored, options)) } else { stored };
        // No plugin is opened, so chunks are the larger ones.
        self.graph_options(options, PREFILL_CHUNK).memory(&decoder)
    }

    fn load(&self, source: &ModelSource, options: &LoadOptions) -> Result<Arc<dyn Model>> {
        match &self.faults {
            None => self.load_with(source, options, |executor| executor),
            Some(faults) => {
                self.load_with(source, options, |executor| FaultyExecutor::new(executor, faults.clone()))
            }
        }
    }
}
