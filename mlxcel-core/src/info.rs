//! Metadata of models.

use std::time::Duration;

use crate::load::Precision;
use crate::token::TokenId;

/// Metadata of a [`Model`](crate::Model).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ModelInfo {
    /// The engine's name, as [`Backend::name`](crate::Backend::name) returns it.
    pub backend: String,
    /// The device in use, by the engine's name for it, and what it is; empty if the engine has no choice of
    /// devices.
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
    /// The version of the payload of [snapshots](crate::Snapshot), and what else their bytes depend on, such
    /// as the type of the KV cache; part of [`StateIdentity`](crate::StateIdentity). Empty for an engine
    /// without snapshots.
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
