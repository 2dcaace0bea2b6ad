//! A loaded decoder on an executor.

use std::sync::Arc;

use mlxcel_core::{
    Capabilities, Error, ErrorKind, InferenceSession, LoadOptions, Model, ModelInfo, Precision, Result,
    SessionOptions,
};
use mlxcel_models::{Checkpoint, Decoder, Rope};

use crate::executor::{Executor, KvLayout};
use crate::numerics::Numerics;
use crate::program::{distinct_ropes, kv_layout};
use crate::session::GraphSession;
use crate::shape::{Lengths, Outputs, ProgramShape};

/// What [`GraphModel::new`] is told.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GraphModelOptions {
    /// The rounding to run with.
    pub precision: Precision,
    /// The most tokens that one sequence may hold; the model's own limit where none is given.
    pub capacity: Option<usize>,
    /// How many sequences a session may hold at once, and so how many rows share a pass at most.
    pub sequences: usize,
    /// How many tokens of a prompt are computed together.
    pub chunk: usize,
}

impl Default for GraphModelOptions {
    /// Native precision, the model's own capacity, 4 sequences, chunks of 64.
    fn default() -> Self {
        Self { precision: Precision::default(), capacity: None, sequences: 4, chunk: 64 }
    }
}

/// A [`Model`] whose decoder runs as graphs on an [`Executor`].
pub struct GraphModel<E>(Arc<Shared<E>>);

/// What the sessions of a model share.
pub(crate) struct Shared<E> {
    pub(crate) executor: E,
    pub(crate) info: ModelInfo,
    pub(crate) capabilities: Capabilities,
    pub(crate) layout: KvLayout,
    pub(crate) ropes: Vec<Rope>,
    pub(crate) lengths: Lengths,
    pub(crate) chunk: usize,
}

/// The most rows of one pass: beyond it, programs get long and the weights are no longer what a step waits for.
const MOST_ROWS: usize = 16;

impl From<&LoadOptions> for GraphModelOptions {
    /// What an engine's options say about the graph; the rest is as by default.
    fn from(options: &LoadOptions) -> Self {
        let default = Self::default();
        Self {
            precision: options.precision,
            capacity: options.capacity,
            sequences: options.sequences.unwrap_or(default.sequences),
            ..default
        }
    }
}

/// What an engine called `backend` tells of `checkpoint`, whose decoder is `decoder`; times are the engine's to add.
pub fn model_info(backend: &str, checkpoint: &Checkpoint, decoder: &Decoder) -> ModelInfo {
    let mut info = ModelInfo::new(backend, &decoder.model_type, decoder.vocabulary_size);
    info.stop_tokens = checkpoint.stop_tokens().to_vec();
    info.fingerprint = checkpoint.fingerprint();
    info.weight_bytes = decoder.weight_bytes();
    info
}

impl GraphModelOptions {
    /// The capacity of a sequence of `decoder`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] where the options ask for none, or for more than the model's limit.
    pub fn capacity_for(&self, decoder: &Decoder) -> Result<usize> {
        let capacity = self.capacity.unwrap_or(decoder.context_length);
        if capacity == 0 || capacity > decoder.context_length {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "load model",
                "the capacity must be from 1 to the model's own limit",
            )
            .with_context("field", "capacity")
            .with_context("value", capacity)
            .with_context("limit", decoder.context_length));
        }
        Ok(capacity)
    }

    /// The programs that every generation of `decoder` begins with, worth making while loading: a prompt chunk and a
    /// decoding row at the least length.
    ///
    /// # Errors
    ///
    /// Those of [`capacity_for`](Self::capacity_for).
    pub fn first_programs(&self, decoder: &Decoder) -> Result<[ProgramShape; 2]> {
        let lengths = Lengths::new(self.capacity_for(decoder)?, self.chunk);
        Ok([self.chunk, 1].map(|tokens| ProgramShape {
            rows: vec![tokens],
            length: lengths.rungs()[0],
            outputs: Outputs::Last,
        }))
    }
}

impl<E: Executor> GraphModel<E> {
    /// A model of `decoder` on `executor`, which holds its weights. `info` is completed here by what the options decide:
    /// capacity and precision.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for options out of range, [`ErrorKind::Unsupported`] for a precision that graphs do not
    /// have.
    pub fn new(
        executor: E,
        decoder: &Decoder,
        mut info: ModelInfo,
        options: &GraphModelOptions,
    ) -> Result<Self> {
        let numerics = Numerics::new(options.precision, decoder)?;
        if options.sequences == 0 || options.chunk < 2 {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "load model",
                "at least one sequence must be held",
            )
            .with_context("field", "sequences"));
        }
        let capacity = options.capacity_for(decoder)?;
        info.capacity = capacity;
        info.precision = options.precision;
        let vocabulary = u16::try_from(decoder.vocabulary_size).unwrap_or(u16::MAX);
        let capabilities = Capabilities::new(options.sequences, capacity)
            .with_batch_rows(options.sequences.min(MOST_ROWS))
            .with_logits(true)
            .with_top_logprobs(vocabulary)
            .with_every_position(true)
            .with_token_masks(true)
            .with_rewind(true)
            .with_fork(true)
            .with_snapshot(true);
        Ok(Self(Arc::new(Shared {
            executor,
            info,
            capabilities,
            layout: kv_layout(decoder, numerics)?,
            ropes: distinct_ropes(decoder).into_iter().cloned().collect(),
            lengths: Lengths::new(capacity, options.chunk),
            chunk: options.chunk,
        })))
    }
}

impl<E: Executor> Model for GraphModel<E> {
    fn info(&self) -> &ModelInfo {
        &self.0.info
    }

    fn capabilities(&self) -> &Capabilities {
        &self.0.capabilities
    }

    fn open_session(&self, options: &SessionOptions) -> Result<Box<dyn InferenceSession>> {
        let limit = self.0.info.capacity;
        let capacity = options.capacity.unwrap_or(limit);
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
        Ok(Box::new(GraphSession::new(Arc::clone(&self.0), capacity)))
    }
}
