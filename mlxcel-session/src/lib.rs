//! Language models inside your own process: open a checkpoint, stream text, chat.
//!
//! # One API, any engine
//!
//! A [`Model`] combines a model loaded by an engine with the checkpoint's tokenizer and chat template.
//! Engines are values that implement [`Backend`]. This crate re-exports those that its features enable
//! (`portable`, the default, `iree`, `mlx` and `pjrt`) and accepts any other. Text processing is the same for
//! every engine: tokenizer, chat template, incremental detokenization, and the [`HostSampler`] for sampling
//! that an engine does not do on its device.
//!
//! ```no_run
//! use std::io::Write;
//!
//! use mlxcel_session::{Message, Model, Options};
//!
//! fn main() -> mlxcel_session::Result<()> {
//!     let model = Model::open("models/storyteller")?;
//!     let question = Message::user("Tell me a story about a fox named Pip.");
//!     let mut answer = model.chat(&[question], &Options::default())?;
//!     for piece in &mut answer {
//!         print!("{}", piece?);
//!         std::io::stdout().flush().ok();
//!     }
//!     println!("\n[{} tokens]", answer.tokens().len());
//!     Ok(())
//! }
//! ```
//!
//! # Core concepts
//!
//! * [`Model::chat`] answers messages, [`Model::generate`] continues a text, [`Model::generate_tokens`]
//!   continues token ids; each returns a [`TextStream`], an iterator over pieces of text that also reports
//!   tokens, log probabilities and timings.
//! * [`Model::conversation`] keeps the KV cache from turn to turn.
//! * [`Model::score`] computes the log probability of each token of a text, [`Model::likelihood`] that of
//!   given continuations, [`Model::embed`] computes embeddings, and [`Model::rerank`] scores documents for a
//!   query.
//! * [`Options`] set limits and sampling. Before the run, the crate decides by the engine's capabilities
//!   whether tokens are sampled on the device or on the host.
//! * [`select_backend`] finds an engine by name, by `MLXCEL_BACKEND`, or by a documented order of preference;
//!   it never falls back silently.
//! * [`Model::engine`] gives access to the engine contract ([`mlxcel_core`]): sessions with many sequences,
//!   batches, forks, logits.
//!
//! The crate prints nothing. It reports through [`tracing`](https://docs.rs/tracing): spans `load`, `compile`,
//! `request`, `prefill` and `step`, and events for what an application may want to log.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod adapters;
mod chat;
mod constraint;
mod conversation;
mod detokenize;
mod draft_model;
mod embed;
mod engine;
mod files;
mod generation;
mod likelihood;
mod model;
mod open;
mod options;
mod prefix;
mod prompt;
mod reasoning;
mod rerank;
mod sampling;
mod score;
mod select;
mod speculation;
mod state_file;
mod stop;
mod stream;
#[cfg(feature = "structured")]
mod structured;
mod sync;
mod text_settings;
mod texts;
mod tokenizer;
mod tools;
mod usage;
#[cfg(feature = "structured")]
mod vocabulary;

pub use adapters::{AdapterPool, PooledAdapter};
pub use chat::{AnswerPart, ChatOptions, ChatTemplate, Message, ReasoningFormat, ToolCall};
pub use constraint::{Constraint, ConstraintSource};
pub use conversation::{Conversation, WhenFull};
pub use detokenize::Detokenizer;
pub use draft_model::DraftModel;
pub use embed::{EmbedOptions, EmbedPrompt};
pub use engine::{
    AdapterStats, AsyncRequestStream, Engine, EngineMap, EngineOptions, EngineStats, Request, RequestStream,
    Share,
};
pub use generation::TextGeneration;
pub use likelihood::ContinuationScore;
pub use mlxcel_core;
pub use mlxcel_core::{
    Adapter, AdapterLimits, Backend, CancelToken, Capabilities, Dry, DynamicTemperature, Error, ErrorKind,
    FinishReason, LoadOptions, LoadProgress, LoadStage, LogitsSampler, MemoryEstimate, Mirostat, ModelInfo,
    ModelSource, Pooling, Precision, Prepare, Result, SampledToken, SamplingContext, SamplingParams,
    SequenceOptions, SessionStats, TokenId, TokenLogprob, Xtc,
};
pub use mlxcel_hub as hub;
#[cfg(any(feature = "iree-dist", feature = "iree-runtime"))]
pub use mlxcel_iree as iree;
#[cfg(feature = "mlx")]
pub use mlxcel_mlx as mlx;
#[cfg(feature = "pjrt")]
pub use mlxcel_pjrt as pjrt;
#[cfg(feature = "portable")]
pub use mlxcel_portable as portable;
pub use model::Model;
pub use open::OpenOptions;
pub use options::Options;
pub use prefix::{PrefixCache, PrefixStats};
pub use prompt::{AsPrompt, Prompt};
pub use reasoning::{AnswerParts, ReasoningSplitter};
pub use rerank::RerankOptions;
pub use sampling::{Candidate, Candidates, HostSampler, SamplingStep, StepContext};
#[cfg(feature = "schemars")]
pub use schemars;
pub use score::{ScoreOptions, TextScore};
pub use select::{BACKEND_VARIABLE, available_backends, select_backend};
pub use speculation::{
    DraftContext, DraftHead, DraftSource, Drafter, EarlierTexts, PromptLookup, Speculation,
};
pub use stream::{Completion, TextStream};
#[cfg(feature = "structured")]
pub use structured::Grammar;
pub use tokenizer::Tokenizer;
pub use tools::{Tool, ToolChoice, ToolParser, ToolPart, Toolbox, Tools};
pub use usage::Usage;
