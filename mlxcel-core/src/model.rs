//! A loaded model: shared weights, on which sessions are opened.

use std::sync::Arc;
use std::time::Duration;

use crate::adapter::Adapter;
use crate::backend::{ModelSource, Precision};
use crate::capabilities::Capabilities;
use crate::error::{Error, ErrorKind, Result};
use crate::session::InferenceSession;
use crate::token::TokenId;

/// Weights on a device and programs to run them: shared by any number of sessions and threads.
///
/// # Contract
///
/// *For users*: share it as `Arc<dyn Model>`; open a session for each thread that generates.
///
/// *For implementers*: sessions may outlive the handle that opened them (each keeps what it needs alive), and sessions of one
/// model on different threads share weights and nothing else.
pub trait Model: Send + Sync {
    /// Metadata of the model.
    fn info(&self) -> &ModelInfo;

    /// What this engine supports for this model.
    fn capabilities(&self) -> &Capabilities;

    /// Opens a session without sequences.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] if the options exceed the capabilities;
    /// [`ErrorKind::ResourceExhausted`](crate::ErrorKind::ResourceExhausted) if the device is out of memory.
    fn open_session(&self, options: &SessionOptions) -> Result<Box<dyn InferenceSession>>;

    /// Loads an adapter into a free slot, for sequences of all sessions. Running sequences go on meanwhile. Needs
    /// [`Capabilities::adapters`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if the engine has no adapters, the model was loaded without room for them, or the adapter
    /// has settings or a rank that the engine does not support; [`ErrorKind::NotFound`], [`ErrorKind::Corrupt`] and
    /// [`ErrorKind::InvalidInput`] for one that is missing, damaged or made for another model;
    /// [`ErrorKind::CapacityExceeded`] if all slots are taken.
    fn load_adapter(&self, source: &ModelSource) -> Result<Adapter> {
        let _ = source;
        Err(Capabilities::unclaimed("load adapter", "adapters"))
    }
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
            fn load_adapter(&self, source: &ModelSource) -> Result<Adapter> {
                (**self).load_adapter(source)
            }
        }
    )*};
}
forward!(&M, Box<M>, Arc<M>);

/// Metadata of a [`Model`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ModelInfo {
    /// The engine's name, as [`Backend::name`](crate::Backend::name) returns it.
    pub backend: String,
    /// The device in use, by the engine's name for it, and what it is; empty if the engine has no choice of devices.
    pub device: String,
    /// The model family: `model_type` in the checkpoint's `config.json`.
    pub model_type: String,
    /// The size of the vocabulary; every [`TokenId`] is below it.
    pub vocabulary_size: usize,
    /// The tokens that end a text.
    pub stop_tokens: Vec<TokenId>,
    /// The most tokens that one sequence may hold.
    pub capacity: usize,
    /// The numeric precision in use.
    pub precision: Precision,
    /// Identifies the checkpoint: equal only for equal weights and configuration.
    pub fingerprint: String,
    /// The version of the payload of [snapshots](crate::Snapshot), and what else their bytes depend on, such as the
    /// type of the KV cache; part of [`StateIdentity`](crate::StateIdentity). Empty for an engine without snapshots.
    pub state_format: String,
    /// Size of the weights on the device, in bytes.
    pub weight_bytes: u64,
    /// Time spent loading, including compilation.
    pub load_time: Duration,
    /// Time spent compiling; part of `load_time`.
    pub compile_time: Duration,
}

impl ModelInfo {
    /// Metadata with these fields; the others are empty or zero and can be set afterwards.
    pub fn new(backend: impl Into<String>, model_type: impl Into<String>, vocabulary_size: usize) -> Self {
        Self {
            backend: backend.into(),
            device: String::new(),
            model_type: model_type.into(),
            vocabulary_size,
            stop_tokens: Vec::new(),
            capacity: 0,
            precision: Precision::default(),
            fingerprint: String::new(),
            state_format: String::new(),
            weight_bytes: 0,
            load_time: Duration::ZERO,
            compile_time: Duration::ZERO,
        }
    }
}

/// Options of [`Model::open_session`]; start from [`SessionOptions::default`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SessionOptions {
    /// The maximum number of tokens per sequence of this session, at most the model's capacity, which is the default.
    pub capacity: Option<usize>,
}

impl SessionOptions {
    /// Sets the maximum number of tokens per sequence.
    #[must_use]
    pub fn with_capacity(mut self, tokens: usize) -> Self {
        self.capacity = Some(tokens);
        self
    }

    /// For engines: the session's capacity, for a model with a capacity of `limit`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] if the options set 0, or more than `limit`.
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
