//! The contract between applications that generate text and the engines that run language models.
//!
//! # Why the contract is at the token level
//!
//! An application passes token ids and gets token ids back; logits and log probabilities only on request. No
//! tensor crosses the contract, so an engine fully owns its weights, KV cache, graph, device and sampling.
//! Eager engines and ahead-of-time compilers can both be fast behind it.
//!
//! There are three traits. A [`Backend`] loads a shared [`Model`] (weights, `Send + Sync`). A model opens
//! exclusive [`InferenceSession`]s. A session holds the KV caches of its sequences and advances them by
//! [`step`](InferenceSession::step), with any mixture of prompt chunks and decoding rows. Engines are values
//! that the application passes around, not variants of an enum.
//!
//! # Core concepts
//!
//! * [`Capabilities`] are data, known before a session is opened. A claimed capability works; an unclaimed
//!   one returns [`ErrorKind::Unsupported`], never an approximation.
//! * [`Precision`] is chosen by name: `Exact`, `Native` or `Fast`.
//! * Whether the engine or the host samples is negotiated before the run: [`SamplingPlan::negotiate`].
//! * [`SequenceState`] reports a sequence's position, capacity and health.
//! * [`GenerateExt`] adds `generate_greedy` and friends to every engine.
//!
//! ```
//! use mlxcel_core::reference::ReferenceBackend;
//! use mlxcel_core::{Backend, GenerateExt, GenerateOptions, LoadOptions, Model, Result, SessionOptions};
//!
//! /// The forty tokens that any engine finds most likely after `prompt`.
//! fn continue_prompt(model: &dyn Model, prompt: &[u32]) -> Result<Vec<u32>> {
//!     let options = GenerateOptions::new(40).with_stop_tokens(model.info().stop_tokens.clone());
//!     let mut session = model.open_session(&SessionOptions::default())?;
//!     Ok(session.generate_greedy(prompt, &options)?.tokens)
//! }
//!
//! let model = ReferenceBackend::new().load(&ReferenceBackend::source(), &LoadOptions::default())?;
//! assert!(continue_prompt(&model, &[1, 2, 3])?.len() <= 40);
//! # Ok::<(), mlxcel_core::Error>(())
//! ```
//!
//! # Batches and forks
//!
//! A session holds many sequences, and a step takes rows of any of them. Here two sequences share a prompt
//! and then continue differently, in one pass over the weights.
//!
//! ```
//! use mlxcel_core::reference::ReferenceBackend;
//! use mlxcel_core::{
//!     Control, InferenceSessionExt, Model, Row, SamplingParams, SamplingPlan, SessionOptions, StepOutput,
//! };
//!
//! let model = ReferenceBackend::new().model()?;
//! let mut session = model.open_session(&SessionOptions::default())?;
//! let first = session.open()?;
//! session.run_row(Row::extend(first, &[5, 6, 7]), &Control::default())?;
//! let second = session.fork(first)?;
//!
//! let params = SamplingParams::greedy().with_temperature(1.0).with_seed(7);
//! let drawn = SamplingPlan::negotiate(&params, session.capabilities())?;
//! let greedy = SamplingPlan::greedy();
//! let mut out = StepOutput::new();
//! let rows = [Row::next(first, &[8], &drawn), Row::next(second, &[8], &greedy)];
//! session.step(&rows, &Control::default(), &mut out)?;
//! assert_eq!(out.rows().len(), 2);
//! assert_eq!(session.stats().passes, 2, "the prompt, then both rows at once");
//! # Ok::<(), mlxcel_core::Error>(())
//! ```
//!
//! This crate has no dependencies, and an engine author needs no other crate. The examples run on the engine
//! in [`mod@reference`].
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

#[macro_use]
mod forward;
#[macro_use]
mod named;
#[macro_use]
mod setters;

mod adapter;
mod advice;
mod backend;
mod cancel;
mod capabilities;
mod distribution;
mod error;
mod faults;
mod generation;
mod identity;
mod info;
mod load;
mod memory;
mod model;
mod plan;
mod pooling;
pub mod reference;
mod sampling;
mod sequence;
mod session;
mod snapshot;
mod step;
mod stopwatch;
mod support;
mod table;
mod token;
mod want;

pub use adapter::{Adapter, AdapterLimits, AdapterSlots};
pub use advice::ErrorAdvice;
pub use backend::Backend;
pub use cancel::CancelToken;
pub use capabilities::{Capabilities, Capability, CapabilityValue};
pub use distribution::{Distribution, most_likely};
pub use error::{Error, ErrorKind, Printable, Result, one_line};
pub use faults::{FaultPoint, Faults};
pub use generation::{
    FinishReason, GenerateExt, GenerateOptions, Generated, Generation, LogitsSampler, SamplingContext,
    TokenChoice, TokenStream,
};
pub use identity::StateIdentity;
pub use info::ModelInfo;
pub use load::{
    LoadOptions, LoadProgress, LoadStage, ModelPart, ModelSource, Precision, Prepare, ProgressFn,
};
pub use memory::MemoryEstimate;
pub use model::{Model, SessionOptions};
pub use plan::{SamplingNeeds, SamplingPlace, SamplingPlan};
pub use pooling::HiddenPool;
pub use sampling::{
    Dry, DynamicTemperature, Mirostat, SamplingField, SamplingFields, SamplingNumber, SamplingParams,
    TokenMask, Xtc,
};
pub use sequence::{SequenceId, SequenceOptions, SequenceState};
pub use session::{InferenceSession, InferenceSessionExt, SessionStats};
pub use snapshot::Snapshot;
pub use step::{Control, PositionResult, Row, RowResult, SampledToken, StepOutput, TokenLogprob};
pub use stopwatch::Stopwatch;
pub use support::{CheckedOptions, OptionSupport};
pub use table::{SequenceTable, StepRow, StepRows};
pub use token::TokenId;
pub use want::{Answer, Pooling, Positions, Want};
