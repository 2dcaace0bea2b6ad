//! The door: a model with its tokenizer.

use std::path::Path;
use std::sync::Arc;

use mlxcel_core::{
    Backend, Capabilities, LoadOptions, ModelInfo, ModelSource, Result, SamplingParams, SessionOptions,
    TokenId,
};

use crate::sampling::defaults;
use crate::stream::Keeper;
use crate::{
    Conversation, Message, OpenOptions, Options, PrefixCache, Prompt, ReasoningSplitter, TextGeneration,
    TextStream, Tokenizer, hub, select_backend, tokenizer,
};

/// A language model, ready to generate: an engine's model together with the checkpoint's tokenizer and chat template.
///
/// It is cheap to clone and to share between threads: clones share the weights, and each generation has a session of its own.
#[derive(Clone)]
pub struct Model {
    engine: Arc<dyn mlxcel_core::Model>,
    tokenizer: Option<Tokenizer>,
    /// Where a missing tokenizer was looked for.
    source: ModelSource,
    prefixes: Option<PrefixCache>,
    /// What the checkpoint asks for.
    sampling: Arc<SamplingParams>,
    #[cfg(feature = "structured")]
    vocabulary: crate::structured::Vocabulary,
}

impl Model {
    /// Opens a model with the engine that [`select_backend`] chooses: a Hugging Face checkpoint folder, a GGUF file, or `org/name`, which is
    /// looked for in the local Hugging Face cache and, with feature `hub`, fetched where it is not there; [`hub`](crate::hub) has the forms
    /// of names.
    ///
    /// ```no_run
    /// let model = mlxcel_session::Model::open("Qwen/Qwen3-0.6B")?;
    /// # Ok::<(), mlxcel_session::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`select_backend`], [`hub::locate`], [`Backend::load`] and [`Tokenizer::from_source`]. A missing tokenizer is none: such a model
    /// takes and gives token ids.
    pub fn open(source: impl Into<ModelSource>) -> Result<Self> {
        Self::open_with(source, &OpenOptions::default())
    }

    /// As [`open`](Self::open), with the engine by name and with what it is asked for.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open).
    pub fn open_with(source: impl Into<ModelSource>, options: &OpenOptions) -> Result<Self> {
        let backend = select_backend(options.backend.as_deref())?;
        Self::load(&backend, source, &options.load)
    }

    /// As [`open`](Self::open), with an engine that the application made itself.
    ///
    /// # Errors
    ///
    /// Those of [`hub::locate`], [`Backend::load`] and [`Tokenizer::from_source`]; [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) for a
    /// `generation_config.json` that makes no sense.
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
        let engine = backend.load(&source, options)?;
        Ok(Self {
            engine,
            tokenizer,
            source,
            prefixes: None,
            sampling,
            #[cfg(feature = "structured")]
            vocabulary: Default::default(),
        })
    }

    /// A model from an engine's model and a tokenizer, or none.
    pub fn from_parts(engine: Arc<dyn mlxcel_core::Model>, tokenizer: impl Into<Option<Tokenizer>>) -> Self {
        let source = ModelSource::BuiltIn(engine.info().model_type.clone());
        let sampling = Arc::default();
        Self {
            engine,
            tokenizer: tokenizer.into(),
            source,
            prefixes: None,
            sampling,
            #[cfg(feature = "structured")]
            vocabulary: Default::default(),
        }
    }

    /// Makes generations of this model, and of its clones from here on, reuse what others have computed.
    #[must_use]
    pub fn with_prefix_cache(mut self, cache: PrefixCache) -> Self {
        self.prefixes = Some(cache);
        self
    }

    /// The cache of computed prefixes, if there is one.
    pub fn prefix_cache(&self) -> Option<&PrefixCache> {
        self.prefixes.as_ref()
    }

    /// The engine's model, for everything that the contract offers and this type does not.
    pub fn engine(&self) -> &Arc<dyn mlxcel_core::Model> {
        &self.engine
    }

    /// The tokenizer.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) where the model has none.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.tokenizer.as_ref().ok_or_else(|| tokenizer::missing(&self.source))
    }

    /// Its vocabulary as grammars see it.
    #[cfg(feature = "structured")]
    pub(crate) fn vocabulary(&self) -> &crate::structured::Vocabulary {
        &self.vocabulary
    }

    /// What there is to know about the model.
    pub fn info(&self) -> &ModelInfo {
        self.engine.info()
    }

    /// What the engine does with it.
    pub fn capabilities(&self) -> &Capabilities {
        self.engine.capabilities()
    }

    /// How the checkpoint asks for tokens to be chosen: what its `generation_config.json` says of `do_sample`, `temperature`,
    /// `top_k`, `top_p`, `min_p`, `typical_p`, `repetition_penalty` and `no_repeat_ngram_size`.
    ///
    /// As in transformers, tokens are drawn only where it has `do_sample`, at temperature 1 where it names none; what it does not
    /// name stays off. Greedy where there is no such file. [`Options`] are greedy unless told otherwise: see
    /// [`default_options`](Self::default_options).
    pub fn default_sampling(&self) -> &SamplingParams {
        &self.sampling
    }

    /// Options with the sampling that the checkpoint asks for, to change as needed: [`Options::default`] with
    /// [`default_sampling`](Self::default_sampling).
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

    /// Continues a text as it stands, without chat template; the tokens that the model wants in front of a text are added.
    ///
    /// # Errors
    ///
    /// Those of [`stream`](Self::stream).
    pub fn generate(&self, text: &str, options: &Options) -> Result<TextStream<'static>> {
        self.stream(text, options)
    }

    /// Answers a conversation, whose prompt the checkpoint's chat template writes.
    ///
    /// # Errors
    ///
    /// Those of [`stream`](Self::stream).
    pub fn chat(&self, messages: &[Message], options: &Options) -> Result<TextStream<'static>> {
        self.stream(messages, options)
    }

    /// Continues a prompt of token ids as they are. A model without tokenizer gives no text, so ask it for its
    /// [`tokens`](TextStream::next_token).
    ///
    /// # Errors
    ///
    /// Those of [`stream`](Self::stream).
    pub fn generate_tokens(&self, prompt: &[TokenId], options: &Options) -> Result<TextStream<'static>> {
        self.stream(prompt, options)
    }

    /// Continues a [`Prompt`] in a session of its own.
    ///
    /// # Errors
    ///
    /// Those of [`generation`](Self::generation) and of [`Model::open_session`](mlxcel_core::Model::open_session).
    pub fn stream<'a>(
        &self,
        prompt: impl Into<Prompt<'a>>,
        options: &Options,
    ) -> Result<TextStream<'static>> {
        let mut generation = self.generation(prompt, options)?;
        let mut session = self.engine.open_session(&SessionOptions::default())?;
        let Some(cache) = &self.prefixes else {
            let sequence = session.open()?;
            return Ok(TextStream::new(session, sequence, generation, None));
        };
        let tokens = generation.tokens().tokens();
        let (sequence, known) = cache.open_sequence(self.info(), &mut *session, tokens)?;
        generation.set_computed(known);
        let keeper = Keeper { cache: cache.clone(), engine: self.engine.clone(), begun: false };
        Ok(TextStream::new(session, sequence, generation, None).kept_by(keeper))
    }

    /// A generation as a value, for who drives sessions himself.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) for text or messages where the model has no tokenizer or no chat template,
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for an empty prompt, a token beyond the vocabulary, an empty stop string or a sampling parameter
    /// out of range, [`ErrorKind::CapacityExceeded`](crate::ErrorKind::CapacityExceeded) for a prompt beyond the context, [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for a sampling
    /// parameter that neither the engine nor the host can apply, [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled) where the options' cancel token was
    /// cancelled before, and those of [`Tokenizer::encode_chat`].
    pub fn generation<'a>(&self, prompt: impl Into<Prompt<'a>>, options: &Options) -> Result<TextGeneration> {
        let (tokens, detokenizer) = prompt.into().encode(self, options)?;
        TextGeneration::new(self, &tokens, options, detokenizer)
    }

    /// Starts a conversation of several turns on one sequence: what was said before is not computed again.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) for a model without tokenizer or chat template, and those of
    /// [`Model::open_session`](mlxcel_core::Model::open_session).
    pub fn conversation(&self) -> Result<Conversation> {
        Conversation::new(self.clone())
    }

    /// Goes on with a conversation that [`Conversation::save`] or [`Conversation::save_with_cache`] wrote.
    ///
    /// The file is checked, and its checksum tells damage; whoever can forge a file can put words and a cache into it, as into any
    /// conversation.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) for what is not a whole conversation of a known version,
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) where its cache is of another model, engine or precision,
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) where it cannot be read, and those of [`conversation`](Self::conversation) and of
    /// [`InferenceSession::restore`](mlxcel_core::InferenceSession::restore).
    pub fn restore_conversation(&self, path: impl AsRef<Path>) -> Result<Conversation> {
        Conversation::restore(self.clone(), path.as_ref())
    }

    /// The message that an answer becomes, with its reasoning apart where the template asks for that.
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

/// What traces call a source.
fn name_of(source: &ModelSource) -> String {
    match source {
        ModelSource::Folder(folder) => folder.display().to_string(),
        ModelSource::BuiltIn(name) => name.clone(),
        _ => "embedded files".to_owned(),
    }
}
