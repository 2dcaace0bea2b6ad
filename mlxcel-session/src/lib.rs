//! Language models inside your own process: open a checkpoint, stream text, chat.
//!
//! # One door, any engine
//!
//! A [`Model`] is an engine's model together with the checkpoint's tokenizer and chat template. Engines are values that
//! implement [`Backend`]; this crate re-exports those that its features compile in (`portable`, the default, `iree` and `mlx`), and
//! takes any other. Everything that text needs is here and the same for every engine: tokenizer, chat template, text that
//! never splits a character, and the [`HostSampler`] for what an engine does not sample itself.
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
//! * [`Model::chat`] answers messages, [`Model::generate`] continues a text, [`Model::generate_tokens`] continues token ids;
//!   each gives a [`TextStream`], an iterator over pieces of text that also knows tokens, log probabilities and timings.
//! * [`Model::conversation`] keeps the KV cache from turn to turn.
//! * [`Options`] say how far to generate and how tokens are chosen; where they are chosen, on the device or on the host, is
//!   negotiated before the run.
//! * [`select_backend`] finds an engine by name, by `MLXCEL_BACKEND`, or by the published order; nothing falls back silently.
//! * [`Model::engine`] is the contract itself ([`mlxcel_core`]): sessions with many sequences, batches, forks, logits.
#![forbid(unsafe_code)]

mod chat;
mod conversation;
mod detokenize;
mod files;
mod model;
mod options;
mod sampling;
mod select;
mod stream;
mod tokenizer;

pub use chat::{ChatOptions, ChatTemplate, Message};
pub use conversation::Conversation;
pub use detokenize::Detokenizer;
pub use mlxcel_core;
pub use mlxcel_core::{
    Backend, CancelToken, Capabilities, Error, ErrorKind, FinishReason, LoadOptions, LoadProgress, LoadStage,
    LogitsSampler, ModelInfo, ModelSource, Precision, Result, SampledToken, SamplingParams, SessionStats,
    TokenId,
};
#[cfg(any(feature = "iree", feature = "iree-dist"))]
pub use mlxcel_iree as iree;
#[cfg(feature = "mlx")]
pub use mlxcel_mlx as mlx;
#[cfg(feature = "portable")]
pub use mlxcel_portable as portable;
pub use model::Model;
pub use options::{OpenOptions, Options};
pub use sampling::HostSampler;
pub use select::{BACKEND_VARIABLE, available_backends, select_backend};
pub use stream::{Completion, TextStream, Timings};
pub use tokenizer::Tokenizer;
