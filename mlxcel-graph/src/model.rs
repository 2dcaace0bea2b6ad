//! A loaded decoder on an executor.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use mlxcel_core::{
    Adapter, AdapterLimits, Capabilities, Error, ErrorKind, InferenceSession, LoadOptions, Model, ModelInfo,
    ModelSource, Precision, Result, SessionOptions,
};
use mlxcel_models::{Checkpoint, Decoder};

use crate::adapters::{self, AdapterRoom};
use crate::executor::Executor;
use crate::numerics::{KvCacheType, Numerics};
use crate::plan::Chunks;
use crate::resident::{ResidentArgument, resident_arguments};
use crate::session::{GraphSession, payload};
use crate::shape::{LengthSteps, Lengths};
use crate::shared::{IndependentRows, Shared};
use crate::state::{StateLayout, bounded_room, state_layouts};

/// Options of [`GraphModel::new`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GraphModelOptions {
    /// The numeric precision.
    pub precision: Precision,
    /// The maximum number of tokens per sequence; defaults to the model's limit.
    pub capacity: Option<usize>,
    /// The maximum number of concurrent sequences per session, and of rows per pass.
    pub sequences: usize,
    /// As many of a model that reads texts in both directions, whose sequences keep nothing.
    pub texts: usize,
    /// How many tokens texts that share a pass of such a model have together: many, and the weights are read
    /// seldom; few, and scores, which plain operations compute between all tokens of a pass, take little.
    pub text_tokens: usize,
    /// The sizes of prompt chunks; each size needs its own programs.
    pub chunks: Vec<usize>,
    /// The KV-length buckets, if programs were compiled for them ahead of time; defaults to
    /// [`Lengths::stepped`] by `length_steps`, or to [`Lengths::new`].
    pub lengths: Option<Lengths>,
    /// The distance between KV-length buckets by default, for engines whose attention cost depends only on
    /// the positions in use.
    pub length_steps: Option<LengthSteps>,
    /// The element type of the KV cache.
    pub kv_cache: KvCacheType,
    /// Whether to support results at every position, which needs additional programs.
    pub every_position: bool,
    /// Whether to support verification of draft tokens, which needs additional programs.
    pub verification: bool,
    /// Whether to support hidden states, which needs additional programs.
    pub hidden_states: bool,
    /// Where what programs compute of a row does not depend on the tokens and rows beside it.
    pub independent_rows: IndependentRows,
    /// The room for adapters, of which programs have arguments and products of their own; defaults to none.
    pub adapters: Option<AdapterLimits>,
}

impl Default for GraphModelOptions {
    /// Native precision, the model's own capacity, 4 sequences, chunks of 64, results at every position,
    /// verification of draft tokens, hidden states, a KV cache of the precision's type.
    fn default() -> Self {
        Self {
            precision: Precision::default(),
            capacity: None,
            sequences: 4,
            texts: 64,
            text_tokens: 128,
            chunks: vec![64],
            lengths: None,
            length_steps: None,
            kv_cache: KvCacheType::default(),
            every_position: true,
            verification: true,
            hidden_states: true,
            independent_rows: IndependentRows::No,
            adapters: None,
        }
    }
}

/// A [`Model`] whose decoder runs as graphs on an [`Executor`].
pub struct GraphModel<E>(Arc<Shared<E>>);

/// The most rows of one pass: beyond it, programs get long and the weights are no longer what a step waits
/// for.
const MOST_ROWS: usize = 16;

impl From<&LoadOptions> for GraphModelOptions {
    /// What an engine's options say about the graph; the rest is as by default.
    fn from(options: &LoadOptions) -> Self {
        let default = Self::default();
        Self {
            precision: options.precision,
            capacity: options.capacity,
            sequences: options.sequences.unwrap_or(default.sequences),
            texts: options.sequences.unwrap_or(default.texts),
            adapters: options.adapters,
            ..default
        }
    }
}

/// The metadata of `checkpoint` with its `decoder` in the engine `backend`, without load times.
pub fn model_info(backend: &str, checkpoint: &Checkpoint, decoder: &Decoder) -> ModelInfo {
    let mut info = ModelInfo::new(backend, &decoder.model_type, decoder.vocabulary_size);
    info.stop_tokens = checkpoint.stop_tokens().to_vec();
    info.fingerprint = checkpoint.fingerprint();
    info.weight_bytes = decoder.weight_bytes();
    info
}

impl GraphModelOptions {
    /// The element types that `decoder` runs with.
    ///
    /// # Errors
    ///
    /// The errors of [`Numerics::new`].
    pub fn numerics(&self, decoder: &Decoder) -> Result<Numerics> {
        Ok(Numerics::new(self.precision, decoder)?.with_kv_cache(self.kv_cache))
    }

    /// The sizes of prompt chunks of `decoder`, or of whole texts if it reads them in both directions.
    ///
    /// # Errors
    ///
    /// The errors of [`capacity_for`](Self::capacity_for).
    pub(crate) fn chunks_for(&self, decoder: &Decoder) -> Result<Chunks> {
        if decoder.is_bidirectional() {
            return Ok(Chunks::whole(self.capacity_for(decoder)?, self.text_tokens));
        }
        Ok(Chunks::new(&self.chunks))
    }

    /// The version of the states, and what their bytes depend on besides the precision.
    fn state_format(&self, layouts: &[StateLayout], rewinds: bool, is_draft_head: bool) -> String {
        let mut format = "state/3".to_owned();
        if !rewinds {
            format += " lacking";
        }
        if is_draft_head {
            format += " draft head";
        }
        if self.kv_cache != KvCacheType::Precision {
            format += &format!(" {}", self.kv_cache);
        }
        for ring in layouts.iter().filter_map(|layout| layout.ring) {
            format += &format!(" ring {ring}");
        }
        format
    }

    /// The layouts of the states of sequences of `decoder`.
    ///
    /// # Errors
    ///
    /// The errors of [`Numerics::new`] and [`state_layouts`].
    pub fn layouts(&self, decoder: &Decoder) -> Result<Vec<StateLayout>> {
        state_layouts(decoder, self.numerics(decoder)?, Chunks::new(&self.chunks).largest())
    }

    /// The residents of the programs of `decoder`.
    ///
    /// # Errors
    ///
    /// The errors of [`Numerics::new`].
    pub fn residents(&self, decoder: &Decoder) -> Result<Vec<ResidentArgument>> {
        Ok(resident_arguments(decoder, self.numerics(decoder)?.operand, self.adapters))
    }

    /// The capacity of a sequence of `decoder`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] if the options set 0, or more than the model's limit.
    pub fn capacity_for(&self, decoder: &Decoder) -> Result<usize> {
        let capacity = self.capacity.unwrap_or(decoder.context_length);
        if capacity == 0 || capacity > decoder.context_length {
            let message = "the capacity must be from 1 to the model's own limit";
            return Err(Error::new(ErrorKind::InvalidInput, "load model", message)
                .with_context("field", "capacity")
                .with_context("value", capacity)
                .with_context("limit", decoder.context_length));
        }
        Ok(capacity)
    }

    /// The KV-length buckets of `decoder`: up to the capacity plus a chunk's padding, or up to the length at
    /// which no state grows any more. One if the decoder keeps no states.
    ///
    /// # Errors
    ///
    /// The errors of [`capacity_for`](Self::capacity_for), and [`ErrorKind::InvalidInput`] if the given
    /// buckets are too short for the capacity plus a chunk's padding.
    pub fn lengths_for(&self, decoder: &Decoder) -> Result<Lengths> {
        let capacity = self.capacity_for(decoder)?;
        if decoder.is_bidirectional() {
            return Lengths::from_buckets([capacity]);
        }
        let chunk = Chunks::new(&self.chunks).largest();
        let needed = bounded_room(decoder, chunk).map_or(capacity + chunk, |room| room.min(capacity + chunk));
        let Some(lengths) = &self.lengths else {
            let (capacity, chunk) = (needed.saturating_sub(chunk), chunk.min(needed));
            return Ok(match self.length_steps {
                Some(steps) => Lengths::stepped(steps, capacity, chunk),
                None => Lengths::new(capacity, chunk),
            });
        };
        if lengths.holding(needed).is_none() {
            let message = "the KV-length buckets are too short for the capacity and a chunk";
            return Err(Error::new(ErrorKind::InvalidInput, "load model", message)
                .with_context("field", "lengths")
                .with_context("lengths", format_args!("{:?}", lengths.buckets()))
                .with_context("capacity", capacity)
                .with_context("chunk", chunk));
        }
        Ok(lengths.clone())
    }

    /// Limits prompt chunks to `tokens`: that size takes the place of the larger ones.
    pub fn limit_chunks(&mut self, tokens: usize) {
        self.chunks.retain(|&size| size < tokens);
        self.chunks.push(tokens);
    }

    /// How many rows share a pass at most.
    pub(crate) fn width(&self) -> usize {
        self.sequences.min(MOST_ROWS)
    }

    /// Refuses options out of range.
    pub(crate) fn check(&self) -> Result<()> {
        let (field, message) = if self.sequences == 0 || self.texts == 0 {
            ("sequences", "sequences must be at least 1")
        } else if self.chunks.iter().min().is_none_or(|&least| least < 2) {
            ("chunks", "a chunk must have at least two tokens")
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::InvalidInput, "load model", message).with_context("field", field))
    }
}

impl<E: Executor> GraphModel<E> {
    /// A model of `decoder` on `executor`, which holds its weights. Capacity and precision of `info` are set
    /// from the options.
    ///
    /// A decoder without a head claims hidden states only. Others claim rewind if the states of all layers
    /// can be restored at every earlier position: recurrent states cannot, and windows only if they are
    /// as long as the capacity ([`StateLayout::is_rewindable`]).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for options out of range, [`ErrorKind::Unsupported`] for a precision that
    /// graphs do not support.
    pub fn new(
        executor: E,
        decoder: &Decoder,
        mut info: ModelInfo,
        options: &GraphModelOptions,
    ) -> Result<Self> {
        options.check()?;
        let layouts = options.layouts(decoder)?;
        let chunks = options.chunks_for(decoder)?;
        let generates = decoder.head.is_some();
        let capacity = options.capacity_for(decoder)?;
        let written = capacity.saturating_add(chunks.largest());
        info.capacity = capacity;
        info.precision = options.precision;
        let rewinds = layouts.iter().all(|layout| layout.is_rewindable(written));
        info.state_format = options.state_format(&layouts, rewinds, decoder.input_states.is_some());
        let vocabulary = u16::try_from(decoder.vocabulary_size).unwrap_or(u16::MAX);
        let (sequences, rows) = match decoder.is_bidirectional() {
            // A row of the program, which several texts share, has one adapter.
            true if options.adapters.is_some() => (options.texts, 1),
            true => (options.texts, options.texts),
            false => (options.sequences, options.width()),
        };
        let capabilities = Capabilities::new(sequences, capacity)
            .with_batch_rows(rows)
            .with_prompt_chunk(chunks.largest())
            .with_generation(generates)
            .with_token_types(decoder.token_types())
            .with_logits(generates)
            .with_top_logprobs(if generates { vocabulary } else { 0 })
            .with_every_position(generates && options.every_position)
            .with_verification(generates && options.verification)
            .with_hidden_states((options.hidden_states || !generates).then_some(decoder.hidden_size))
            .with_output_states(decoder.output_state_width().filter(|_| generates))
            .with_input_states(decoder.input_states.map(|_| decoder.hidden_size))
            .with_token_masks(generates)
            .with_adapters(options.adapters)
            .with_bitwise_batch_invariance(options.independent_rows == IndependentRows::All)
            .with_rewind(generates && rewinds)
            .with_fork(generates)
            .with_snapshot(generates)
            .with_snapshot_bytes(generates.then(|| payload::most_bytes(&layouts, capacity)));
        let residents = options.residents(decoder)?;
        let adapters = options.adapters.map(|room| AdapterRoom::new(room, decoder, residents));
        Ok(Self(Arc::new(Shared {
            executor,
            info,
            capabilities,
            layouts,
            epochs: decoder.rope_epochs(),
            head_tokens: decoder.head_tokens.clone(),
            ropes: decoder.ropes().into_iter().cloned().collect(),
            lengths: options.lengths_for(decoder)?,
            bound: bounded_room(decoder, chunks.largest()),
            chunks,
            independent_rows: options.independent_rows,
            adapters,
            padded_passes: AtomicU32::new(0),
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
        let capacity = options.capacity_within(self.0.info.capacity)?;
        Ok(Box::new(GraphSession::new(Arc::clone(&self.0), capacity)))
    }

    fn load_adapter(&self, source: &ModelSource) -> Result<Adapter> {
        let Shared { adapters, executor, .. } = &*self.0;
        adapters::room(adapters.as_ref(), "load adapter")?.load(executor, source)
    }
}
