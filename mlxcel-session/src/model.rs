//! The door: a model with its tokenizer.

use std::sync::Arc;

use mlxcel_core::{
    Backend, Capabilities, Error, ErrorKind, GenerateOptions, InferenceSession, LoadOptions, ModelInfo,
    ModelSource, Result, SamplingPlace, SamplingPlan, SessionOptions, TokenChoice, TokenId, TokenStream,
};

use crate::stream::{Parts, Record};
use crate::{
    ChatOptions, Conversation, Detokenizer, HostSampler, Message, OpenOptions, Options, TextStream,
    Tokenizer, select_backend, tokenizer,
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
}

impl Model {
    /// Opens a model, such as a Hugging Face checkpoint folder, with the engine that [`select_backend`] chooses.
    ///
    /// # Errors
    ///
    /// Those of [`select_backend`], [`Backend::load`] and [`Tokenizer::from_source`]. A missing tokenizer is none: such a model
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
    /// Those of [`Backend::load`] and [`Tokenizer::from_source`].
    pub fn load(
        backend: &dyn Backend,
        source: impl Into<ModelSource>,
        options: &LoadOptions,
    ) -> Result<Self> {
        let source = source.into();
        // It is the quicker one of the two to be found wrong.
        let tokenizer = Tokenizer::from_source(&source)?;
        let engine = backend.load(&source, options)?;
        Ok(Self { engine, tokenizer, source })
    }

    /// A model from an engine's model and a tokenizer, or none.
    pub fn from_parts(engine: Arc<dyn mlxcel_core::Model>, tokenizer: impl Into<Option<Tokenizer>>) -> Self {
        let source = ModelSource::BuiltIn(engine.info().model_type.clone());
        Self { engine, tokenizer: tokenizer.into(), source }
    }

    /// The engine's model, for everything that the contract offers and this type does not.
    pub fn engine(&self) -> &Arc<dyn mlxcel_core::Model> {
        &self.engine
    }

    /// The tokenizer.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] where the model has none.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.tokenizer.as_ref().ok_or_else(|| tokenizer::missing(&self.source))
    }

    /// What there is to know about the model.
    pub fn info(&self) -> &ModelInfo {
        self.engine.info()
    }

    /// What the engine does with it.
    pub fn capabilities(&self) -> &Capabilities {
        self.engine.capabilities()
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
    /// [`ErrorKind::NotFound`] for a model without tokenizer, [`ErrorKind::InvalidInput`] for an empty text, and those of
    /// [`generate_tokens`](Self::generate_tokens).
    pub fn generate(&self, text: &str, options: &Options) -> Result<TextStream<'static>> {
        let tokenizer = self.tokenizer()?;
        if text.is_empty() {
            return Err(empty_prompt());
        }
        let prompt = tokenizer.encode_prompt(text, true, self.capabilities().context)?;
        let detokenizer = Detokenizer::after(tokenizer.clone(), options.skip_special_tokens, &prompt)?;
        self.start(&prompt, options, Some(detokenizer))
    }

    /// Answers a conversation, whose prompt the checkpoint's chat template writes.
    ///
    /// # Errors
    ///
    /// Those of [`Tokenizer::encode_chat`] and [`generate_tokens`](Self::generate_tokens).
    pub fn chat(&self, messages: &[Message], options: &Options) -> Result<TextStream<'static>> {
        let most_tokens = self.capabilities().context;
        let prompt = self.tokenizer()?.encode_chat_prompt(messages, &ChatOptions::default(), most_tokens)?;
        self.generate_tokens(&prompt, options)
    }

    /// Continues a prompt of token ids as they are. A model without tokenizer gives no text, so ask it for its
    /// [`tokens`](TextStream::next_token).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for an empty prompt, a token beyond the vocabulary or a sampling parameter out of range,
    /// [`ErrorKind::CapacityExceeded`] for a prompt beyond the context, [`ErrorKind::Unsupported`] for a sampling parameter that
    /// neither the engine nor the host can apply, and those of [`Model::open_session`](mlxcel_core::Model::open_session).
    pub fn generate_tokens(&self, prompt: &[TokenId], options: &Options) -> Result<TextStream<'static>> {
        let detokenizer =
            self.tokenizer.clone().map(|tokenizer| Detokenizer::new(tokenizer, options.skip_special_tokens));
        self.start(prompt, options, detokenizer)
    }

    /// Starts a conversation of several turns on one sequence: what was said before is not computed again.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] for a model without tokenizer or chat template, and those of
    /// [`Model::open_session`](mlxcel_core::Model::open_session).
    pub fn conversation(&self) -> Result<Conversation> {
        Conversation::new(self.clone())
    }

    fn start(
        &self,
        prompt: &[TokenId],
        options: &Options,
        detokenizer: Option<Detokenizer>,
    ) -> Result<TextStream<'static>> {
        let mut session = self.engine.open_session(&SessionOptions::default())?;
        let sequence = session.open()?;
        let place = Place { session, sequence, history: &[], record: None };
        self.stream(place, prompt, options, detokenizer)
    }

    /// Starts a generation at `place`.
    pub(crate) fn stream<'a>(
        &self,
        place: Place<'a, '_>,
        prompt: &[TokenId],
        options: &Options,
        detokenizer: Option<Detokenizer>,
    ) -> Result<TextStream<'a>> {
        let vocabulary = self.info().vocabulary_size;
        if prompt.is_empty() {
            return Err(empty_prompt());
        }
        if let Some(token) = prompt.iter().find(|&&token| token as usize >= vocabulary) {
            return Err(Error::new(ErrorKind::InvalidInput, "generate", "a token is beyond the vocabulary")
                .with_context("token", token)
                .with_context("vocabulary", vocabulary));
        }
        let plan = SamplingPlan::negotiate(&options.sampling, place.session.capabilities())?;
        tracing::debug!(backend = %self.info().backend, sampling = %plan, prompt_tokens = prompt.len(), "generate");
        let choice = match plan.place() {
            SamplingPlace::Host => TokenChoice::Host(Box::new(HostSampler::new(plan.params().clone())?)),
            _ => TokenChoice::Engine(plan),
        };
        let model_stops = self.stop_tokens();
        let mut stop_tokens = options.stop_tokens.clone();
        if !options.ignore_stop {
            stop_tokens.extend_from_slice(&model_stops);
        }
        let mut generate = GenerateOptions::new(options.max_tokens).with_stop_tokens(stop_tokens);
        generate.cancel.clone_from(&options.cancel);
        let stream =
            TokenStream::resume(place.session, place.sequence, place.history, prompt, generate, choice)?;
        Ok(TextStream::new(Parts {
            stream,
            sequence: place.sequence,
            detokenizer,
            silent: model_stops,
            prompt_tokens: place.history.len() + prompt.len(),
            record: place.record,
        }))
    }
}

/// Where a generation runs.
pub(crate) struct Place<'a, 'b> {
    pub(crate) session: Box<dyn InferenceSession + 'a>,
    pub(crate) sequence: mlxcel_core::SequenceId,
    /// The tokens that the sequence holds.
    pub(crate) history: &'b [TokenId],
    pub(crate) record: Option<&'a mut Record>,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model").field("info", self.info()).field("tokenizer", &self.tokenizer).finish()
    }
}

fn empty_prompt() -> Error {
    Error::new(ErrorKind::InvalidInput, "generate", "the prompt is empty")
}
