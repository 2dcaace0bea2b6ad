//! Opens models with a selected engine, within a memory budget.

use mlxcel_core::{
    AdapterLimits, Backend, Error, ErrorKind, LoadOptions, MemoryEstimate, ModelSource, Precision, Result,
    setters,
};
use mlxcel_hub as hub;

use crate::model::Model;
use crate::select::select_backend;
use crate::speculation::DraftHead;

/// Options of [`Model::open_with`]; start from [`OpenOptions::default`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct OpenOptions {
    /// The engine's name, passed to [`select_backend`], which also defines the default.
    pub backend: Option<String>,
    /// Options passed to the engine: precision, capacity, threads, progress and so on.
    pub load: LoadOptions,
    /// The most bytes that the model may take by [`Model::estimate`]; if it would take more, opening
    /// fails before anything is loaded. Not limited by default.
    pub memory_budget: Option<u64>,
    /// Whether a draft head is opened too, for [`Model::draft_head`]: that of [`LoadOptions::draft_head`], or
    /// the checkpoint's own. The model is then loaded with [`LoadOptions::output_states`].
    pub draft_head: bool,
}

impl OpenOptions {
    setters! {
        /// Sets the engine by name.
        with_backend(name: impl Into<String>) => backend = Some(name.into());
        /// Sets the most bytes that the model may take.
        with_memory_budget(bytes: u64) => memory_budget = Some(bytes);
        /// Opens the checkpoint's draft head too; see [`DraftHead`].
        with_draft_head() => draft_head = true;
        /// Sets all options passed to the engine.
        with_load(load: LoadOptions) => load = load;
    }

    /// Sets the numeric precision.
    #[must_use]
    pub fn with_precision(mut self, precision: Precision) -> Self {
        self.load.precision = precision;
        self
    }

    /// Sets the room for adapters; see [`Model::load_adapter`].
    #[must_use]
    pub fn with_adapters(mut self, room: AdapterLimits) -> Self {
        self.load.adapters = Some(room);
        self
    }

    /// Opens a draft head from a checkpoint of its own too, which was trained for the model: a folder, or a
    /// name `org/name` as of [models](Model::open), or a GGUF file.
    ///
    /// ```no_run
    /// use mlxcel_session::{Model, OpenOptions};
    ///
    /// let options = OpenOptions::default().with_draft_head_from("RedHatAI/Qwen3-8B-speculator.eagle3");
    /// let model = Model::open_with("Qwen/Qwen3-8B", &options)?;
    /// let head = model.draft_head()?;
    /// # Ok::<(), mlxcel_session::Error>(())
    /// ```
    #[must_use]
    pub fn with_draft_head_from(mut self, source: impl Into<ModelSource>) -> Self {
        self.load.draft_head = Some(source.into());
        self.with_draft_head()
    }
}

impl Model {
    /// Opens a model with the engine that [`select_backend`] chooses. The source is a Hugging Face checkpoint
    /// folder, a GGUF file, or a name `org/name`, which is looked up in the local Hugging Face cache and,
    /// with feature `hub`, downloaded if it is not there. See [`hub`](crate::hub) for the forms of names.
    ///
    /// ```no_run
    /// let model = mlxcel_session::Model::open("Qwen/Qwen3-0.6B")?;
    /// # Ok::<(), mlxcel_session::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`select_backend`], [`hub::locate`], [`Backend::load`](mlxcel_core::Backend::load) and
    /// [`Tokenizer::from_source`](crate::Tokenizer::from_source). A missing tokenizer is not an error: such a
    /// model generates token ids only.
    pub fn open(source: impl Into<ModelSource>) -> Result<Self> {
        Self::open_with(source, &OpenOptions::default())
    }

    /// As [`open`](Self::open), with an engine name and load options.
    ///
    /// # Errors
    ///
    /// The errors of [`open`](Self::open), and [`ErrorKind::ResourceExhausted`] with the numbers in its
    /// context for a model that would take more than [`OpenOptions::memory_budget`]. With a draft head, the
    /// errors of [`DraftHead::load`].
    pub fn open_with(source: impl Into<ModelSource>, options: &OpenOptions) -> Result<Self> {
        let backend = select_backend(options.backend.as_deref())?;
        let source = hub::locate(source, &options.load)?;
        if let Some(budget) = options.memory_budget {
            check_memory(&estimate(&backend, &source, options)?, budget)?;
        }
        if options.draft_head {
            return Self::load_with_draft_head(&backend, source, &options.load);
        }
        Self::load(&backend, source, &options.load)
    }

    /// The memory that a model would take with these options: weights, the states of all sequences at full
    /// capacity, and the intermediate results of a pass. Nothing is loaded, but a model that is not in
    /// the local cache is downloaded.
    ///
    /// ```no_run
    /// use mlxcel_session::{LoadOptions, Model, OpenOptions};
    ///
    /// let load = LoadOptions::default().with_capacity(8192).with_sequences(4);
    /// let memory = Model::estimate("models/qwen3-0.6b", &OpenOptions::default().with_load(load))?;
    /// println!("{} MiB, of which {} MiB weights", memory.total() >> 20, memory.weights >> 20);
    /// # Ok::<(), mlxcel_session::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`select_backend`], [`hub::locate`] and
    /// [`Backend::estimate`](mlxcel_core::Backend::estimate).
    pub fn estimate(source: impl Into<ModelSource>, options: &OpenOptions) -> Result<MemoryEstimate> {
        let backend = select_backend(options.backend.as_deref())?;
        estimate(&backend, &hub::locate(source, &options.load)?, options)
    }
}

/// The memory of the model, and of its draft head if that is opened too.
fn estimate(backend: &dyn Backend, source: &ModelSource, options: &OpenOptions) -> Result<MemoryEstimate> {
    if !options.draft_head {
        return backend.estimate(source, &options.load);
    }
    let load = DraftHead::located(&options.load)?.with_output_states(true);
    let model = backend.estimate(source, &load)?;
    let head = backend.estimate(source, &DraftHead::options(&load))?;
    Ok(MemoryEstimate::new(
        model.weights.saturating_add(head.weights),
        model.caches.saturating_add(head.caches),
        model.scratch.saturating_add(head.scratch),
    )
    .with_adapters(model.adapters))
}

/// Refuses a model that takes more than `budget` bytes.
fn check_memory(memory: &MemoryEstimate, budget: u64) -> Result<()> {
    if memory.total() <= budget {
        return Ok(());
    }
    let message =
        "the model takes more memory than its budget; lower the capacity or the number of sequences";
    Err(Error::new(ErrorKind::ResourceExhausted, "open model", message)
        .with_context("budget", budget)
        .with_context("bytes", memory.total())
        .with_context("weights", memory.weights)
        .with_context("caches", memory.caches)
        .with_context("scratch", memory.scratch)
        .with_context("adapters", memory.adapters))
}
