//! A model with its tokenizer: the main type of this crate.

use std::sync::Arc;

use mlxcel_core::{
    Adapter, Backend, Capabilities, Error, ErrorKind, LoadOptions, ModelInfo, ModelSource, Result,
    SamplingParams, TokenId,
};
use mlxcel_hub as hub;

use crate::prefix::PrefixCache;
use crate::sampling::defaults;
use crate::speculation::DraftHead;
use crate::text_settings::{self, TextSettings};
use crate::tokenizer::{self, Tokenizer};
#[cfg(feature = "structured")]
use crate::vocabulary::Vocabulary;

/// A language model, ready to generate: a model loaded by an engine, with the checkpoint's tokenizer and chat
/// template.
///
/// Cheap to clone and to share between threads: clones share the weights, and each generation opens its own
/// session.
#[derive(Clone)]
pub struct Model {
    engine: Arc<dyn mlxcel_core::Model>,
    tokenizer: Option<Tokenizer>,
    /// Where a missing tokenizer was looked for.
    source: ModelSource,
    prefixes: Option<PrefixCache>,
    draft_head: Option<DraftHead>,
    /// The checkpoint's sampling defaults.
    sampling: Arc<SamplingParams>,
    /// What the checkpoint says about embeddings and rerankers.
    texts: Arc<TextSettings>,
    #[cfg(feature = "structured")]
    vocabulary: Vocabulary,
}

impl Model {
    /// As [`open`](Self::open), with an engine that the application created.
    ///
    /// # Errors
    ///
    /// The errors of [`hub::locate`], [`Backend::load`] and [`Tokenizer::from_source`];
    /// [`ErrorKind::Corrupt`] for a `generation_config.json` that is invalid.
    pub fn load(
        backend: &dyn Backend,
        source: impl Into<ModelSource>,
        options: &LoadOptions,
    ) -> Result<Self> {
        let source = hub::locate(source, options)?;
        let span = tracing::info_span!("load", backend = backend.name(), source = %name_of(&source));
        let _entered = span.enter();
        // It is the quicker one of the two to be found wrong.
        let tokenizer = Tokenizer::read(&source, text_settings::is_lower_case(&source)?)?;
        let sampling = Arc::new(defaults::read(&source)?);
        let texts = Arc::new(TextSettings::read(&source)?);
        let model = Self::from_parts(backend.load(&source, options)?, tokenizer);
        Ok(Self { source, sampling, texts, ..model })
    }

    /// As [`load`](Self::load), with the [draft head](Self::draft_head) of the checkpoint or of
    /// [`LoadOptions::draft_head`].
    ///
    /// # Errors
    ///
    /// The errors of [`load`](Self::load) and [`DraftHead::load`].
    pub fn load_with_draft_head(
        backend: &dyn Backend,
        source: impl Into<ModelSource>,
        options: &LoadOptions,
    ) -> Result<Self> {
        let source = hub::locate(source, options)?;
        let options = DraftHead::located(options)?;
        // The smaller of the two, and the one that may be missing.
        let head = DraftHead::load(backend, &source, &options)?;
        let model = Self::load(backend, source, &options.with_output_states(true))?;
        Ok(Self { draft_head: Some(head), ..model })
    }

    /// Combines a model loaded by an engine with an optional tokenizer.
    pub fn from_parts(engine: Arc<dyn mlxcel_core::Model>, tokenizer: impl Into<Option<Tokenizer>>) -> Self {
        let source = ModelSource::BuiltIn(engine.info().model_type.clone());
        Self {
            engine,
            tokenizer: tokenizer.into(),
            source,
            prefixes: None,
            draft_head: None,
            sampling: Arc::default(),
            texts: Arc::default(),
            #[cfg(feature = "structured")]
            vocabulary: Default::default(),
        }
    }

    /// The model's draft head, a source of drafts for [`Speculation`](crate::Speculation).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if the model was opened without.
    pub fn draft_head(&self) -> Result<DraftHead> {
        self.draft_head.clone().ok_or_else(|| {
            let message = "the model was opened without its draft head; use `OpenOptions::with_draft_head`";
            Error::new(ErrorKind::NotFound, "speculate", message)
        })
    }

    /// Lets generations of this model, and of clones made from now on, reuse computed prefixes of earlier
    /// ones.
    #[must_use]
    pub fn with_prefix_cache(mut self, cache: PrefixCache) -> Self {
        self.prefixes = Some(cache);
        self
    }

    /// The prefix cache, if one is set.
    pub fn prefix_cache(&self) -> Option<&PrefixCache> {
        self.prefixes.as_ref()
    }

    /// The engine's model, for everything in the contract that this type does not wrap.
    pub fn engine(&self) -> &Arc<dyn mlxcel_core::Model> {
        &self.engine
    }

    /// The tokenizer.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if the model has none.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.tokenizer.as_ref().ok_or_else(|| tokenizer::missing(&self.source))
    }

    pub(crate) fn texts(&self) -> &TextSettings {
        &self.texts
    }

    /// Its vocabulary as grammars see it.
    #[cfg(feature = "structured")]
    pub(crate) fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Metadata of the model.
    pub fn info(&self) -> &ModelInfo {
        self.engine.info()
    }

    /// What the engine supports for this model.
    pub fn capabilities(&self) -> &Capabilities {
        self.engine.capabilities()
    }

    /// The checkpoint's own sampling parameters: `do_sample`, `temperature`, `top_k`, `top_p`, `min_p`,
    /// `typical_p`, `repetition_penalty` and `no_repeat_ngram_size` of its `generation_config.json`.
    ///
    /// As in transformers, tokens are sampled only if `do_sample` is set, and the temperature defaults to 1;
    /// other fields default to off. Greedy if the file is missing.
    /// [`Options::default`](crate::Options::default) ignores these parameters;
    /// [`default_options`](Self::default_options) applies them.
    pub fn default_sampling(&self) -> &SamplingParams {
        &self.sampling
    }

    /// The tokens that end a text: the model's own and the tokenizer's `eos_token`.
    pub fn stop_tokens(&self) -> Vec<TokenId> {
        let mut tokens = self.info().stop_tokens.clone();
        let end = self.tokenizer.as_ref().and_then(|tokenizer| tokenizer.special_token_id("eos_token"));
        tokens.extend(end.filter(|token| !tokens.contains(token)));
        tokens
    }

    /// The rank of the adapter in `source`, for the [room](crate::AdapterLimits::rank) of a model that is to
    /// load it.
    ///
    /// # Errors
    ///
    /// The errors of [`hub::locate`]; [`ErrorKind::NotFound`] if a file is missing, [`ErrorKind::Corrupt`]
    /// for a damaged one.
    pub fn adapter_rank(source: impl Into<ModelSource>) -> Result<usize> {
        mlxcel_models::AdapterWeights::rank(&hub::locate(source, &LoadOptions::default())?)
    }

    /// Loads an adapter in the format of the PEFT library or of mlx-lm, a folder with `adapter_config.json`
    /// and `adapter_model.safetensors` or `adapters.safetensors`, or of llama.cpp, a GGUF file, for
    /// generations with [`Options::with_adapter`](crate::Options::with_adapter). A name `org/name` is looked
    /// up as that of a [model](hub::locate). Generations with other
    /// adapters and without one run meanwhile and share steps. It takes one of the slots that the model
    /// was [opened with](crate::OpenOptions::with_adapters) until the last clone of the handle is dropped
    /// and no sequence uses it.
    ///
    /// ```no_run
    /// use mlxcel_session::{AdapterLimits, Model, OpenOptions, Options};
    ///
    /// let room = AdapterLimits::new(8, 16);
    /// let model = Model::open_with("models/llama", &OpenOptions::default().with_adapters(room))?;
    /// let poems = model.load_adapter("adapters/poems")?;
    /// let poem = model.generate("The sea", &Options::new(40).with_adapter(&poems))?.complete()?;
    /// # Ok::<(), mlxcel_session::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`hub::locate`] and [`Model::load_adapter`](mlxcel_core::Model::load_adapter).
    pub fn load_adapter(&self, source: impl Into<ModelSource>) -> Result<Adapter> {
        self.engine.load_adapter(&hub::locate(source, &LoadOptions::default())?)
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model").field("info", self.info()).field("tokenizer", &self.tokenizer).finish()
    }
}

/// What traces call a source.
fn name_of(source: &ModelSource) -> String {
    match source {
        ModelSource::Folder(folder) => folder.display().to_string(),
        ModelSource::BuiltIn(name) => name.clone(),
        _ => "embedded files".to_owned(),
    }
}
