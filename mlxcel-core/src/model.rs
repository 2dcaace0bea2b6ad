//! A loaded model: shared weights, on which sessions are opened.

use std::sync::Arc;

use crate::adapter::Adapter;
use crate::capabilities::Capabilities;
use crate::error::{Error, ErrorKind, Result};
use crate::info::ModelInfo;
use crate::load::ModelSource;
use crate::session::InferenceSession;

/// Weights on a device and programs to run them: shared by any number of sessions and threads.
///
/// # Contract
///
/// *For users*: share it as `Arc<dyn Model>`; open a session for each thread that generates.
///
/// *For implementers*: sessions may outlive the handle that opened them (each keeps what it needs alive), and
/// sessions of one model on different threads share weights and nothing else.
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
    /// [`ErrorKind::ResourceExhausted`] if the device is out of memory.
    fn open_session(&self, options: &SessionOptions) -> Result<Box<dyn InferenceSession>>;

    /// Loads an adapter into a free slot, for sequences of all sessions. Running sequences go on meanwhile.
    /// Needs [`Capabilities::adapters`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if the engine has no adapters, the model was loaded without room for them,
    /// or the adapter has settings or a rank that the engine does not support; [`ErrorKind::NotFound`],
    /// [`ErrorKind::Corrupt`] and [`ErrorKind::InvalidInput`] for one that is missing, damaged or made
    /// for another model; [`ErrorKind::CapacityExceeded`] if all slots are taken.
    fn load_adapter(&self, source: &ModelSource) -> Result<Adapter> {
        let _ = source;
        Err(Capabilities::unclaimed("load adapter", "adapters"))
    }
}

forward!(Model<M> for &M, Box<M>, Arc<M>; {
    fn info() -> &ModelInfo;
    fn capabilities() -> &Capabilities;
    fn open_session(options: &SessionOptions) -> Result<Box<dyn InferenceSession>>;
    fn load_adapter(source: &ModelSource) -> Result<Adapter>;
});

/// Options of [`Model::open_session`]; start from [`SessionOptions::default`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SessionOptions {
    /// The maximum number of tokens per sequence of this session, at most the model's capacity, which is the
    /// default.
    pub capacity: Option<usize>,
}

impl SessionOptions {
    setters! {
        /// Sets the maximum number of tokens per sequence.
        with_capacity(tokens: usize) => capacity = Some(tokens);
    }

    /// For engines: the session's capacity, for a model with a capacity of `limit`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] if the options set 0, or more than `limit`.
    pub fn capacity_within(&self, limit: usize) -> Result<usize> {
        let capacity = self.capacity.unwrap_or(limit);
        if capacity == 0 || capacity > limit {
            let message = "the capacity must be from 1 to the model's";
            return Err(Error::new(ErrorKind::InvalidInput, "open session", message)
                .with_context("field", "capacity")
                .with_context("value", capacity)
                .with_context("limit", limit));
        }
        Ok(capacity)
    }
}
