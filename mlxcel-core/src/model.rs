//! A loaded model: shared weights that sessions are opened on.

use std::sync::Arc;
use std::time::Duration;

use crate::{Capabilities, Error, ErrorKind, InferenceSession, Precision, Result, TokenId};

/// Weights on a device and programs to run them: shared by any number of sessions and threads.
///
/// # Contract
///
/// *For users*: share it as `Arc<dyn Model>`; open a session for each thread that generates.
///
/// *For implementers*: sessions may outlive the handle that opened them (each keeps what it needs alive), and sessions of one
/// model on different threads share weights and nothing else.
pub trait Model: Send + Sync {
    /// What there is to know about the model.
    fn info(&self) -> &ModelInfo;

    /// What this engine does with this model.
    fn capabilities(&self) -> &Capabilities;

    /// Opens a session with no sequence in it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] where the options exceed the capabilities;
    /// [`ErrorKind::ResourceExhausted`](crate::ErrorKind::ResourceExhausted) where memory is short.
    fn open_session(&self, options: &SessionOptions) -> Result<Box<dyn InferenceSession>>;
}

macro_rules! forward {
    ($($target:ty),*) => {$(
        #[deny(clippy::missing_trait_methods)]
        impl<M: Model + ?Sized> Model for $target {
            fn info(&self) -> &ModelInfo {
                (**self).info()
            }
            fn capabilities(&self) -> &Capabilities {
                (**self).capabilities()
            }
            fn open_session(&self, options: &SessionOptions) -> Result<Box<dyn InferenceSession>> {
                (**self).open_session(options)
            }
        }
    )*};
}
forward!(&M, Box<M>, Arc<M>);

/// What a [`Model`] is.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ModelInfo {
    /// The engine's name, as [`Backend::name`](crate::Backend::name) gives it.
    pub backend: String,
    /// The family, as `model_type` in the checkpoint's `config.json`.
    pub model_type: String,
    /// How many tokens the vocabulary has; every [`TokenId`] is below it.
    pub vocabulary_size: usize,
    /// The tokens that end a text.
    pub stop_tokens: Vec<TokenId>,
    /// The most tokens that one sequence may hold.
    pub capacity: usize,
    /// The rounding in use.
    pub precision: Precision,
    /// Tells checkpoints apart: equal only for equal weights and configuration.
    pub fingerprint: String,
    /// Bytes of weights that the engine keeps on its device.
    pub weight_bytes: u64,
    /// How long loading took, compiling included.
    pub load_time: Duration,
    /// How much of that was compiling; zero where nothing had to be compiled.
    pub compile_time: Duration,
}

impl ModelInfo {
    /// Information with empty texts and zero figures but for what must be known; set the other fields after.
    pub fn new(backend: impl Into<String>, model_type: impl Into<String>, vocabulary_size: usize) -> Self {
        Self {
            backend: backend.into(),
            model_type: model_type.into(),
            vocabulary_size,
            stop_tokens: Vec::new(),
            capacity: 0,
            precision: Precision::default(),
            fingerprint: String::new(),
            weight_bytes: 0,
            load_time: Duration::ZERO,
            compile_time: Duration::ZERO,
        }
    }
}

/// What [`Model::open_session`] is asked for; start from [`SessionOptions::default`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SessionOptions {
    /// The most tokens that one sequence of this session may hold, at most the model's; defaults to the model's.
    pub capacity: Option<usize>,
}

impl SessionOptions {
    /// Sets the most tokens that one sequence of this session may hold.
    #[must_use]
    pub fn with_capacity(mut self, tokens: usize) -> Self {
        self.capacity = Some(tokens);
        self
    }

    /// For engines: the most tokens that one sequence of the session holds, of a model whose sequences hold up to `limit`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] where the options ask for none, or for more than `limit`.
    pub fn capacity_within(&self, limit: usize) -> Result<usize> {
        let capacity = self.capacity.unwrap_or(limit);
        if capacity == 0 || capacity > limit {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "open session",
                "the capacity must be from 1 to the model's",
            )
            .with_context("field", "capacity")
            .with_context("value", capacity)
            .with_context("limit", limit));
        }
        Ok(capacity)
    }
}
