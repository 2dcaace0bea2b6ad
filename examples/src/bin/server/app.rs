//! What all requests share.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mlxcel_session::{AsyncRequestStream, Engine, Error, Request, SamplingParams, Share, Tokenizer};
use tokio::sync::Semaphore;

use crate::failure::ApiError;
use crate::metrics::Served;
use crate::work::Workers;

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
    /// How many requests came.
    pub(crate) requests: AtomicU64,
    pub(crate) served: Served,
    /// For bodies, prompts and grammars.
    pub(crate) workers: Workers,
    /// The thread that embeds texts: in a session of its own, and one for all, so that it cannot take all memory.
    pub(crate) embedding: Workers,
}

impl App {
    /// The tokenizer; the program does not start without one.
    pub(crate) fn tokenizer(&self) -> Result<&Tokenizer, ApiError> {
        Ok(self.engine.model().tokenizer()?)
    }

    /// Submits requests for a client, which takes the time of encoding their prompts and compiling their grammars.
    pub(crate) async fn submit<F>(
        self: &Arc<Self>,
        share: Share,
        make: F,
    ) -> Result<Vec<AsyncRequestStream>, ApiError>
    where
        F: FnOnce(&mut dyn FnMut(Request<'_>) -> mlxcel_session::Result<()>) -> mlxcel_session::Result<()>
            + Send
            + 'static,
    {
        let engine = self.engine.clone();
        let submit = move || {
            let mut streams = Vec::new();
            make(&mut |request| {
                streams.push(engine.submit(request.with_share(share))?.into_async());
                Ok(())
            })?;
            Ok::<_, Error>(streams)
        };
        Ok(self.workers.run(share.client, submit).await??)
    }
}

/// Seconds since 1970.
pub(crate) fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
