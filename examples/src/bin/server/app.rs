//! What all requests share.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mlxcel_session::{AsyncRequestStream, Engine, Error, ErrorKind, Request, SamplingParams, Tokenizer};
use tokio::sync::{Mutex, Semaphore};

use crate::failure::ApiError;
use crate::metrics::Served;

/// The running server.
pub(crate) struct App {
    pub(crate) engine: Engine,
    /// What the API calls the model.
    pub(crate) name: String,
    pub(crate) api_key: Option<String>,
    /// How tokens are chosen where a request does not say.
    pub(crate) sampling: SamplingParams,
    /// The most tokens of an answer.
    pub(crate) most_tokens: usize,
    pub(crate) time_limit: Duration,
    /// The most bytes of a request's body.
    pub(crate) most_bytes: usize,
    /// Room for the bytes of bodies that are parsed at the same time.
    pub(crate) parsing: Arc<Semaphore>,
    /// Seconds since 1970.
    pub(crate) started: u64,
    pub(crate) served: Served,
    /// Held by the embedding thread, because its client may leave earlier.
    pub(crate) embedding: Arc<Mutex<()>>,
}

impl App {
    /// The tokenizer; the program does not start without one.
    pub(crate) fn tokenizer(&self) -> Result<&Tokenizer, ApiError> {
        Ok(self.engine.model().tokenizer()?)
    }

    /// Submits requests, which takes the time of encoding their prompts: on a blocking thread.
    pub(crate) async fn submit<F>(self: &Arc<Self>, make: F) -> Result<Vec<AsyncRequestStream>, ApiError>
    where
        F: FnOnce(&mut dyn FnMut(Request<'_>) -> mlxcel_session::Result<()>) -> mlxcel_session::Result<()>
            + Send
            + 'static,
    {
        let engine = self.engine.clone();
        let submitted = tokio::task::spawn_blocking(move || {
            let mut streams = Vec::new();
            make(&mut |request| {
                streams.push(engine.submit(request)?.into_async());
                Ok(())
            })?;
            Ok(streams)
        });
        match submitted.await {
            Ok(streams) => streams.map_err(|error: Error| error.into()),
            Err(error) => Err(Error::new(ErrorKind::Internal, "submit request", "it panicked")
                .with_source(error)
                .into()),
        }
    }
}

/// Seconds since 1970.
pub(crate) fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
