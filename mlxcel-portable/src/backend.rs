//! The engine as a [`Backend`].

use std::sync::Arc;

use mlxcel_core::{
    Backend, Error, ErrorKind, LoadOptions, LoadProgress, LoadStage, MemoryEstimate, Model, ModelSource,
    OptionSupport, Result, Stopwatch,
};
use mlxcel_graph::{Executor, GraphModel, GraphModelOptions, KvCacheType, ProgramWriter, model_info};
use mlxcel_models::{Checkpoint, FeatureSet};

use crate::eval::Workers;
use crate::executor::PortableExecutor;

/// The name of this engine.
pub(crate) const NAME: &str = "portable";

/// The only device that this engine has.
const DEVICE: &str = "cpu";

/// The portable engine: decoder graphs evaluated in pure Rust, on [`LoadOptions::threads`] threads (defaults
/// to one per core). Its only [`LoadOptions::device`] is `cpu`.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct PortableBackend {
    pub(crate) kv_cache: KvCacheType,
}

impl PortableBackend {
    /// Creates the engine.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the element type of the KV cache, which defaults to that of the precision.
    #[must_use]
    pub fn with_kv_cache(mut self, kv_cache: KvCacheType) -> Self {
        self.kv_cache = kv_cache;
        self
    }
}

impl Backend for PortableBackend {
    fn name(&self) -> &str {
        NAME
    }

    fn load(&self, source: &ModelSource, options: &LoadOptions) -> Result<Arc<dyn Model>> {
        load(source, options, self.kv_cache, |executor| executor)
    }

    fn estimate(&self, source: &ModelSource, options: &LoadOptions) -> Result<MemoryEstimate> {
        let decoder = Checkpoint::for_options(source, options)?.decoder_for(options)?;
        let mut graph = GraphModelOptions::from(options);
        graph.kv_cache = self.kv_cache;
        graph.memory(&decoder)
    }
}

/// Loads a model that runs on what `run_by` makes of the executor.
pub(crate) fn load<E: Executor>(
    source: &ModelSource,
    options: &LoadOptions,
    kv_cache: KvCacheType,
    run_by: impl FnOnce(PortableExecutor) -> E,
) -> Result<Arc<dyn Model>> {
    let started = Stopwatch::start();
    let checkpoint = Checkpoint::for_options(source, options)?;
    let decoder = checkpoint.decoder_for(options)?;
    decoder.require(&FeatureSet::all(), NAME)?;
    let mut graph = GraphModelOptions::from(options);
    graph.kv_cache = kv_cache;
    // Mapping files is soon done: there is no boundary to stop at later.
    let support = OptionSupport::new(decoder.context_length, graph.sequences)
        .with_devices(&[DEVICE])
        .with_adapters()
        .with_draft_heads();
    let checked = support.check(options)?;
    let threads = || std::thread::available_parallelism().map_or(1, usize::from);
    let workers = Workers::new(checked.threads.unwrap_or_else(threads)).map_err(|error| {
        Error::new(ErrorKind::ResourceExhausted, "start threads", "the system cannot start another thread")
            .with_source(error)
    })?;
    // Next to nothing is copied: weights are run from where they are mapped, unless they are gathered from
    // several places.
    if let Some(progress) = &options.progress {
        progress(LoadProgress::new(LoadStage::Weights, decoder.weight_bytes(), decoder.weight_bytes()));
    }
    let mut info = model_info(NAME, &checkpoint, &decoder);
    info.load_time = started.elapsed();
    let writer = ProgramWriter::new(decoder.clone(), &graph)?;
    let executor = PortableExecutor::new(checkpoint, writer, workers)?;
    Ok(Arc::new(GraphModel::new(run_by(executor), &decoder, info, &graph)?))
}
