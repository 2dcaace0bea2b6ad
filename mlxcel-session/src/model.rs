//! A model with its tokenizer: the main type of this crate.

use std::path::Path;
use std::sync::Arc;

use mlxcel_core::{
    Adapter, Backend, Capabilities, Error, ErrorKind, LoadOptions, MemoryEstimate, ModelInfo, ModelSource,
    Result, SamplingParams, SequenceOptions, SessionOptions, TokenId,
};
use mlxcel_hub as hub;

use crate::chat::{Message, ReasoningSplitter};
use crate::conversation::Conversation;
use crate::generation::TextGeneration;
use crate::options::{OpenOptions, Options};
use crate::prefix::PrefixCache;
use crate::prompt::Prompt;
use crate::sampling::defaults;
use crate::select::select_backend;
use crate::stream::{Keeper, TextStream};
use crate::text_settings::TextSettings;
use crate::tokenizer::{self, Tokenizer};

/// A language model, ready to generate: a model loaded by an engine, with the checkpoint's tokenizer and chat template.
///
/// Cheap to clone and to share between threads: clones share the weights, and each generation opens its own session.
#[derive(Clone)]
pub struct Model {
    engine: Arc<dyn mlxcel_core::Model>,
    tokenizer: Option<Tokenizer>,
    /// Where a missing tokenizer was looked for.
    source: ModelSource,
    prefixes: Option<PrefixCache>,
    /// The checkpoint's sampling defaults.
    sampling: Arc<SamplingParams>,
    /// What the checkpoint says about embeddings and rerankers.
    texts: Arc<TextSettings>,
    #[cfg(feature = "structured")]
    vocabulary: crate::structured::Vocabulary,
}

impl Model {
    /// Opens a model with the engine that [`select_backend`] chooses. The source is a Hugging Face checkpoint folder, a
    /// GGUF file, or a name `org/name`, which is looked up in the local Hugging Face cache and, with feature `hub`,
    /// downloaded if it is not there. See [`hub`](crate::hub) for the forms of names.
    ///
    /// ```no_run
    /// let model = mlxcel_session::Model::open("Qwen/Qwen3-0.6B")?;
    /// # Ok::<(), mlxcel_session::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`select_backend`], [`hub::locate`], [`Backend::load`] and [`Tokenizer::from_source`]. A missing
    /// tokenizer is not an error: such a model generates token ids only.
    pub fn open(source: impl Into<ModelSource>) -> Result<Self> {
        Self::open_with(source, &OpenOptions::default())
    }

    /// As [`open`](Self::open), with an engine name and load options.
    ///
    /// # Errors
    ///
    /// The errors of [`open`](Self::open), and [`ErrorKind::ResourceExhausted`](crate::ErrorKind::ResourceExhausted) with
    /// the numbers in its context for a model that would take more than [`OpenOptions::memory_budget`].
    pub fn open_with(source: impl Into<ModelSource>, options: &OpenOptions) -> Result<Self> {
        let backend = select_backend(options.backend.as_deref())?;
        let source = hub::locate(source, &options.load)?;
        if let Some(budget) = options.memory_budget {
            check_memory(&backend.estimate(&source, &options.load)?, budget)?;
        }
        Self::load(&backend, source, &options.load)
    }

    /// The memory that a model would take with these options: weights, the states of all sequences at full capacity, and
    /// the intermediate results of a pass. Nothing is loaded, but a model that is not in the local cache is downloaded.
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
    /// The errors of [`select_backend`], [`hub::locate`] and [`Backend::estimate`].
    pub fn estimate(source: impl Into<ModelSource>, options: &OpenOptions) -> Result<MemoryEstimate> {
        let backend = select_backend(options.backend.as_deref())?;
        backend.estimate(&hub::locate(source, &options.load)?, &options.load)
    }

    /// As [`open`](Self::open), with an engine that the application created.
    ///
    /// # Errors
    ///
    /// The errors of [`hub::locate`], [`Backend::load`] and [`Tokenizer::from_source`];
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) for a `generation_config.json` that is invalid.
    pub fn load(
        backend: &dyn Backend,
        source: impl Into<ModelSource>,
        options: &LoadOptions,
    ) -> Result<Self> {
        let source = hub::locate(source, options)?;
        let span = tracing::info_span!("load", backend = backend.name(), source = %name_of(&source));
        let _entered = span.enter();
        // It is the quicker one of the two to be found wrong.
        let tokenizer = Tokenizer::from_source(&source)?;
        let sampling = Arc::new(defaults::read(&source)?);
        let texts = Arc::new(TextSettings::read(&source)?);
        let engine = backend.load(&source, options)?;
        Ok(Self {
            engine,
            tokenizer,
            source,
            prefixes: None,
            sampling,
            texts,
            #[cfg(feature = "structured")]
            vocabulary: Default::default(),
        })
    }

    /// Combines a model loaded by an engine with an optional tokenizer.
    pub fn from_parts(engine: Arc<dyn mlxcel_core::Model>, tokenizer: impl Into<Option<Tokenizer>>) -> Self {
        let source = ModelSource::BuiltIn(engine.info().model_type.clone());
        let (sampling, texts) = (Arc::default(), Arc::default());
        Self {
            engine,
            tokenizer: tokenizer.into(),
            source,
            prefixes: None,
            sampling,
            texts,
            #[cfg(feature = "structured")]
            vocabulary: Default::default(),
        }
    }

    /// Lets generations of this model, and of clones made from now on, reuse computed prefixes of earlier ones.
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
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if the model has none.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.tokenizer.as_ref().ok_or_else(|| tokenizer::missing(&self.source))
    }

    pub(crate) fn texts(&self) -> &TextSettings {
        &self.texts
    }

    /// Its vocabulary as grammars see it.
    #[cfg(feature = "structured")]
    pub(crate) fn vocabulary(&self) -> &crate::structured::Vocabulary {
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

    /// The checkpoint's own sampling parameters: `do_sample`, `temperature`, `top_k`, `top_p`, `min_p`, `typical_p`,
    /// `repetition_penalty` and `no_repeat_ngram_size` of its `generation_config.json`.
    ///
    /// As in transformers, tokens are sampled only if `do_sample` is set, and the temperature defaults to 1; other
    /// fields default to off. Greedy if the file is missing. [`Options::default`] ignores these parameters;
    /// [`default_options`](Self::default_options) applies them.
    pub fn default_sampling(&self) -> &SamplingParams {
        &self.sampling
    }

    /// [`Options::default`] with the checkpoint's [`default_sampling`](Self::default_sampling).
    ///
    /// ```no_run
    /// let model = mlxcel_session::Model::open("models/qwen3-0.6b")?;
    /// let options = model.default_options().with_temperature(0.5).with_random_seed();
    /// # Ok::<(), mlxcel_session::Error>(())
    /// ```
    pub fn default_options(&self) -> Options {
        Options::default().with_sampling(self.sampling.as_ref().clone())
    }

    /// The tokens that end a text: the model's own and the tokenizer's `eos_token`.
    pub fn stop_tokens(&self) -> Vec<TokenId> {
        let mut tokens = self.info().stop_tokens.clone();
        let end = self.tokenizer.as_ref().and_then(|tokenizer| tokenizer.special_token_id("eos_token"));
        tokens.extend(end.filter(|token| !tokens.contains(token)));
        tokens
    }

    /// Continues a text without a chat template. The tokenizer's leading special tokens (such as BOS) are added.
    ///
    /// # Errors
    ///
    /// The errors of [`stream`](Self::stream).
    pub fn generate(&self, text: &str, options: &Options) -> Result<TextStream<'static>> {
        self.stream(text, options)
    }

    /// Answers a conversation, rendered by the checkpoint's chat template.
    ///
    /// # Errors
    ///
    /// The errors of [`stream`](Self::stream).
    pub fn chat(&self, messages: &[Message], options: &Options) -> Result<TextStream<'static>> {
        self.stream(messages, options)
    }

    /// Continues a prompt of token ids. A model without a tokenizer yields no text; read its
    /// [`tokens`](TextStream::next_token).
    ///
    /// # Errors
    ///
    /// The errors of [`stream`](Self::stream).
    pub fn generate_tokens(&self, prompt: &[TokenId], options: &Options) -> Result<TextStream<'static>> {
        self.stream(prompt, options)
    }

    /// Continues a [`Prompt`] in its own session.
    ///
    /// # Errors
    ///
    /// The errors of [`generation`](Self::generation) and of [`Model::open_session`](mlxcel_core::Model::open_session).
    pub fn stream<'a>(
        &self,
        prompt: impl Into<Prompt<'a>>,
        options: &Options,
    ) -> Result<TextStream<'static>> {
        let mut generation = self.generation(prompt, options)?;
        let mut session = self.engine.open_session(&SessionOptions::default())?;
        let Some(cache) = &self.prefixes else {
            let sequence = session.open_with(generation.sequence_options())?;
            return Ok(TextStream::new(session, sequence, generation, None));
        };
        let tokens = generation.tokens().tokens();
        let options = generation.sequence_options();
        let (sequence, known) = cache.open_sequence(self.info(), &mut *session, options, tokens)?;
        generation.set_computed(known);
        let keeper = Keeper { cache: cache.clone(), engine: self.engine.clone(), begun: false };
        Ok(TextStream::new(session, sequence, generation, None).kept_by(keeper))
    }

    /// A generation for applications that drive sessions themselves.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) for text without a tokenizer or messages without a chat
    /// template, [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for an empty prompt, a token outside the
    /// vocabulary, an empty stop string or a sampling parameter out of range,
    /// [`ErrorKind::CapacityExceeded`](crate::ErrorKind::CapacityExceeded) for a prompt beyond the context,
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for a sampling parameter that neither the engine nor
    /// the host can apply, [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled) if the options' cancel token was
    /// already cancelled, and the errors of [`Tokenizer::encode_chat`].
    pub fn generation<'a>(&self, prompt: impl Into<Prompt<'a>>, options: &Options) -> Result<TextGeneration> {
        let (tokens, detokenizer) = prompt.into().encode(self, options)?;
        TextGeneration::new(self, &tokens, options, detokenizer)
    }

    /// The rank of the adapter in `source`, for the [room](crate::AdapterLimits::rank) of a model that is to load it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if a file is missing,
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) for a damaged one.
    pub fn adapter_rank(source: impl Into<ModelSource>) -> Result<usize> {
        mlxcel_models::AdapterWeights::rank(&source.into())
    }

    /// Loads an adapter in the format of the PEFT library or of mlx-lm, a folder with `adapter_config.json` and
    /// `adapter_model.safetensors` or `adapters.safetensors`, or of llama.cpp, a GGUF file, for generations with [`Options::with_adapter`]. Generations with other adapters and
    /// without one run meanwhile and share steps. It takes one of the slots that the model was
    /// [opened with](OpenOptions::with_adapters) until the last clone of the handle is dropped and no sequence uses it.
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
    /// The errors of [`Model::load_adapter`](mlxcel_core::Model::load_adapter).
    pub fn load_adapter(&self, source: impl Into<ModelSource>) -> Result<Adapter> {
        self.engine.load_adapter(&source.into())
    }

    /// Starts a multi-turn conversation on one sequence, so that earlier turns are not computed again.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) for a model without tokenizer or chat template, and those of
    /// [`Model::open_session`](mlxcel_core::Model::open_session).
    pub fn conversation(&self) -> Result<Conversation> {
        Conversation::new(self.clone())
    }

    /// Resumes a conversation written by [`Conversation::save`] or [`Conversation::save_with_cache`].
    ///
    /// A checksum detects damage, not forgery: restore only files that you would trust as input, since a forged file
    /// can contain any messages and any cache.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) if the file is not a complete conversation of a known version,
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) if its cache is of another model, engine or
    /// precision, or of an adapter, [`ErrorKind::Io`](crate::ErrorKind::Io) if it cannot be read, and the errors of
    /// [`conversation`](Self::conversation) and of
    /// [`InferenceSession::restore`](mlxcel_core::InferenceSession::restore).
    pub fn restore_conversation(&self, path: impl AsRef<Path>) -> Result<Conversation> {
        self.restore_conversation_with(path, &SequenceOptions::default())
    }

    /// As [`restore_conversation`](Self::restore_conversation), for a conversation whose last answer was generated with an
    /// adapter: its cache continues with that adapter only.
    ///
    /// ```no_run
    /// use mlxcel_session::{AdapterLimits, Model, OpenOptions, Options, SequenceOptions};
    ///
    /// let room = AdapterLimits::new(8, 16);
    /// let model = Model::open_with("models/llama", &OpenOptions::default().with_adapters(room))?;
    /// let poems = model.load_adapter("adapters/poems")?;
    /// let own = SequenceOptions::default().with_adapter(&poems);
    /// let mut conversation = model.restore_conversation_with("poems.conversation", &own)?;
    /// conversation.say("Another one, please.", &Options::new(40).with_adapter(&poems))?.complete()?;
    /// # Ok::<(), mlxcel_session::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`restore_conversation`](Self::restore_conversation);
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) if its cache is of another adapter or of none, or if the
    /// adapter was loaded into another model.
    pub fn restore_conversation_with(
        &self,
        path: impl AsRef<Path>,
        options: &SequenceOptions,
    ) -> Result<Conversation> {
        Conversation::restore(self.clone(), path.as_ref(), options)
    }

    /// The message that an answer becomes, with separate reasoning if the template supports it.
    pub(crate) fn answer_message(&self, text: String, mut splitter: ReasoningSplitter) -> Message {
        let tokenizer = self.tokenizer.as_ref();
        if !tokenizer.is_some_and(Tokenizer::reads_reasoning) {
            return Message::assistant(text);
        }
        let mut parts = splitter.push(&text);
        parts.extend(splitter.finish());
        Message::of_parts(parts)
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model").field("info", self.info()).field("tokenizer", &self.tokenizer).finish()
    }
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

/// What traces call a source.
fn name_of(source: &ModelSource) -> String {
    match source {
        ModelSource::Folder(folder) => folder.display().to_string(),
        ModelSource::BuiltIn(name) => name.clone(),
        _ => "embedded files".to_owned(),
    }
}
