//! A complete engine without weights, for doc tests, examples and test kits.
//!
//! [`ReferenceBackend`] derives a tiny deterministic language model from a seed. Its text is meaningless, but
//! it is a full engine: it keeps a KV cache with an entry for each position, prefills in chunks, batches
//! rows, and supports everything that [`Capabilities`] can claim. The logits depend on every token and its
//! position, so an off-by-one position, an entry of another sequence or a stale entry changes the output.
//!
//! All arithmetic up to the logits uses integers, so they are identical on every machine and for any batch
//! composition and prefill chunking.
//!
//! ```
//! use mlxcel_core::reference::ReferenceBackend;
//! use mlxcel_core::{GenerateExt, GenerateOptions, Model, SessionOptions};
//!
//! let model = ReferenceBackend::new().model()?;
//! let mut session = model.open_session(&SessionOptions::default())?;
//! let text = session.generate_greedy(&[1, 2, 3], &GenerateOptions::new(5))?;
//! assert_eq!(text.tokens.len(), 5);
//! assert_eq!(text, session.generate_greedy(&[1, 2, 3], &GenerateOptions::new(5))?);
//! # Ok::<(), mlxcel_core::Error>(())
//! ```
//!
//! # Configuration
//!
//! * It claims every capability, [`adapters`](Capabilities::adapters) if it is loaded with room for them.
//!   [`with_capabilities`](ReferenceBackend::with_capabilities) withdraws some; they return
//!   [`ErrorKind::Unsupported`] then.
//! * [`with_faults`](ReferenceBackend::with_faults) injects failures, as of hardware.
//! * [`with_chunk`](ReferenceBackend::with_chunk) and [`with_delay`](ReferenceBackend::with_delay) make
//!   prefill slow enough to be cancelled.
//! * [`with_window`](ReferenceBackend::with_window) and
//!   [`with_recurrence`](ReferenceBackend::with_recurrence) give it sequence state of bounded size, and
//!   [`with_broken_weights`](ReferenceBackend::with_broken_weights) NaN logits.
//!
//! # Sampling
//!
//! It applies these fields of [`SamplingParams`](crate::SamplingParams) itself: bias, the three penalties
//! over the whole sequence, temperature, top-k, top-p and min-p, in the same order and by the same
//! definitions as the host sampler of `mlxcel-session`, and so samples from the same distribution. Like every
//! engine that samples on its device it has its own random generator, here the finalizer of SplitMix64 over
//! seed and position. So a seed gives the same text on every run of this engine, but not the text that host
//! sampling gives for that seed.

mod adapters;
mod language;
mod model;
mod sampling;
mod session;

use std::sync::Arc;
use std::time::Duration;

use adapters::AdapterRoom;
use language::Language;
use model::{Memory, ReferenceModel, Shared};

use crate::backend::Backend;
use crate::capabilities::Capabilities;
use crate::error::{Error, ErrorKind, Result};
use crate::faults::{FaultPoint, Faults};
use crate::info::ModelInfo;
use crate::load::{LoadOptions, LoadProgress, LoadStage, ModelSource, Precision};
use crate::model::Model;
use crate::sampling::SamplingFields;
use crate::stopwatch::Stopwatch;
use crate::support::{CheckedOptions, OptionSupport};
use crate::token::TokenId;

/// The engine's name and that of its model.
const NAME: &str = "reference";

/// The one device.
const DEVICE: &str = "cpu";

/// The most tokens that a sequence may hold.
const CONTEXT: usize = 1024;

/// How many sequences a session holds where the options do not say.
const SEQUENCES: usize = 8;

/// The reference engine; see the [module documentation](self).
///
/// It reads no checkpoint: [`load`](Backend::load) accepts [`ReferenceBackend::source`] only. Supported
/// [`LoadOptions`]: capacity (up to 1024), sequences (defaults to 8), the precisions `exact` and `native` (identical),
/// one thread, the device `cpu`, adapters, output states, progress and cancel.
#[derive(Clone, Debug)]
pub struct ReferenceBackend {
    vocabulary: usize,
    stop_tokens: Vec<TokenId>,
    weights_seed: u64,
    chunk: usize,
    delay: Duration,
    faults: Option<Faults>,
    limits: Option<Capabilities>,
    memory: Memory,
    broken: bool,
}

impl Default for ReferenceBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl ReferenceBackend {
    /// An engine with a vocabulary of 64 tokens, the stop token 0, prompt chunks of 16 tokens, no fault, no
    /// delay, and every capability.
    pub fn new() -> Self {
        Self {
            vocabulary: 64,
            stop_tokens: vec![0],
            weights_seed: 0,
            chunk: 16,
            delay: Duration::ZERO,
            faults: None,
            limits: None,
            memory: Memory::Full,
            broken: false,
        }
    }

    /// The source to load: [`ModelSource::BuiltIn`] with the name `reference`.
    pub fn source() -> ModelSource {
        ModelSource::BuiltIn(NAME.to_owned())
    }

    /// The source of a built-in adapter, for [`Model::load_adapter`] with [`LoadOptions::adapters`]. The
    /// adapter 0 changes nothing.
    pub fn adapter(number: u64) -> ModelSource {
        adapters::source(number)
    }

    /// Loads the model with the default options.
    ///
    /// # Errors
    ///
    /// The errors of [`Backend::load`].
    pub fn model(&self) -> Result<Arc<dyn Model>> {
        self.load(&Self::source(), &LoadOptions::default())
    }

    setters! {
        /// Sets the size of the vocabulary; at least 2.
        with_vocabulary(tokens: usize) => vocabulary = tokens;
        /// Sets the tokens that end a text; each within the vocabulary.
        with_stop_tokens(tokens: impl Into<Vec<TokenId>>) => stop_tokens = tokens.into();
        /// Sets the seed of the weights. Another seed is another model, with another fingerprint.
        with_weights_seed(seed: u64) => weights_seed = seed;
        /// Sets the prompt chunk: how many tokens of a prompt are computed per pass, and so how often
        /// cancellation is checked; at least 1.
        with_chunk(tokens: usize) => chunk = tokens;
        /// Sets the minimum duration of a pass.
        with_delay(pass: Duration) => delay = pass;
        /// Sets the fault to inject.
        with_faults(faults: Faults) => faults = Some(faults);
        /// Limits attention to a sliding window of the last `positions` positions, including the current one;
        /// at least 1. Memory per sequence is bounded by the window, and rewind is claimed only for sessions
        /// whose capacity does not exceed it.
        with_window(positions: usize) => memory = Memory::Window(positions);
        /// Replaces the KV cache with a recurrent state of one number. Output still depends on every token;
        /// memory per sequence is constant, and rewind is not claimed.
        with_recurrence() => memory = Memory::Recurrent;
        /// Computes NaN logits, like a checkpoint with a NaN weight.
        with_broken_weights() => broken = true;
        /// Limits the capabilities to `most`: others return [`ErrorKind::Unsupported`].
        with_capabilities(most: Capabilities) => limits = Some(most);
    }

    /// What is claimed for sessions of a model with these options.
    fn capabilities(&self, checked: &CheckedOptions<'_>) -> Capabilities {
        let CheckedOptions { sequences, capacity, adapters, output_states, .. } = *checked;
        let all = Capabilities::new(sequences, capacity)
            .with_batch_rows(sequences)
            .with_prompt_chunk(self.chunk)
            .with_logits(true)
            .with_top_logprobs(u16::try_from(self.vocabulary).unwrap_or(u16::MAX))
            .with_every_position(true)
            .with_verification(true)
            .with_hidden_states(Some(Language::HIDDEN))
            .with_output_states(output_states.then_some(Language::HIDDEN))
            .with_token_masks(true)
            .with_rewind(self.memory.is_rewindable(capacity))
            .with_fork(true)
            .with_snapshot(true)
            .with_snapshot_bytes(Some(session::payload_bytes(capacity)))
            .with_adapters(adapters)
            .with_bitwise_batch_invariance(true)
            .with_sampling(SamplingFields::from(sampling::FIELDS));
        self.limits.as_ref().map_or_else(|| all.clone(), |most| all.limited_to(most))
    }

    /// Rejects invalid settings of this value.
    fn check(&self) -> Result<()> {
        let outside = self.stop_tokens.iter().find(|&&token| token as usize >= self.vocabulary);
        let empty = "a chunk must have at least one token";
        for (is_wrong, field, value, message) in [
            (
                self.vocabulary < 2 || TokenId::try_from(self.vocabulary).is_err(),
                "vocabulary",
                self.vocabulary,
                "a vocabulary must have from 2 to 2³² - 1 tokens",
            ),
            (self.chunk == 0, "chunk", 0, empty),
            (self.limits.as_ref().is_some_and(|most| most.prompt_chunk == 0), "prompt_chunk", 0, empty),
            (self.memory == Memory::Window(0), "window", 0, "a window must be at least 1"),
            (
                outside.is_some(),
                "stop_tokens",
                outside.map_or(0, |&token| token as usize),
                "the token is outside the vocabulary",
            ),
        ] {
            if is_wrong {
                return Err(Error::new(ErrorKind::InvalidInput, "load model", message)
                    .with_context("field", field)
                    .with_context("value", value));
            }
        }
        Ok(())
    }
}

fn check_source(source: &ModelSource) -> Result<()> {
    match source {
        ModelSource::BuiltIn(name) if name == NAME => Ok(()),
        ModelSource::BuiltIn(name) => {
            Err(Error::new(ErrorKind::NotFound, "load model", "this engine has no model with this name")
                .with_context("model", name)
                .with_context("known", NAME))
        }
        _ => Err(Error::unsupported("load model", "this engine makes its own model and reads no checkpoint")
            .with_context("known", NAME)),
    }
}

impl Backend for ReferenceBackend {
    fn name(&self) -> &str {
        NAME
    }

    fn load(&self, source: &ModelSource, options: &LoadOptions) -> Result<Arc<dyn Model>> {
        let started = Stopwatch::start();
        check_source(source)?;
        self.check()?;
        let limits = self.limits.as_ref();
        let mut support =
            OptionSupport::new(limits.map_or(CONTEXT, |most| most.context.min(CONTEXT)), SEQUENCES);
        if limits.is_none_or(|most| most.adapters.is_some()) {
            support = support.with_adapters();
        }
        let checked = support
            .with_output_states()
            .with_most_sequences(limits.map_or(usize::MAX, |most| most.sequences))
            .with_precisions(&[Precision::Exact, Precision::Native])
            .with_threads(1)
            .with_devices(&[DEVICE])
            .check(options)?;
        if let Some(faults) = &self.faults {
            faults.check(FaultPoint::Allocation, "load model")?;
        }
        let language = Language::new(self.vocabulary, self.weights_seed);
        if let Some(progress) = &options.progress {
            progress(LoadProgress::new(LoadStage::Weights, language.bytes(), language.bytes()));
        }
        let mut info = ModelInfo::new(NAME, NAME, self.vocabulary);
        info.stop_tokens.clone_from(&self.stop_tokens);
        info.capacity = checked.capacity;
        info.precision = checked.precision;
        info.fingerprint = language.fingerprint(&self.stop_tokens);
        info.state_format = "kv/1".to_owned();
        match self.memory {
            Memory::Full => {}
            Memory::Window(window) => info.fingerprint.push_str(&format!("-window-{window}")),
            Memory::Recurrent => info.fingerprint.push_str("-recurrent"),
        }
        info.weight_bytes = language.bytes();
        info.load_time = started.elapsed();
        let capabilities = self.capabilities(&checked);
        Ok(Arc::new(ReferenceModel(Arc::new(Shared {
            language,
            memory: self.memory,
            broken: self.broken,
            info,
            adapters: capabilities.adapters.map(AdapterRoom::new),
            capabilities,
            delay: self.delay,
            faults: self.faults.clone(),
        }))))
    }
}
