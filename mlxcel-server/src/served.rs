//! The served models, and what all their requests share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use mlxcel_session::{
    CancelToken, Engine, Error, FinishReason, Request, SamplingParams, Speculation, Tokenizer,
};
use tokio::sync::Semaphore;

use crate::adapters::Adapters;
use crate::failure::ApiError;
use crate::ids::Ids;
use crate::limits::Limits;
use crate::response_counts::ResponseCounts;
use crate::sender::Sender;
use crate::spans::{RequestSpan, ServedStream};
use crate::work::{CancelledOnDrop, TEXTS_AT_ONCE, Workers};

/// What all requests share, of whatever model.
pub(crate) struct Shared {
    pub(crate) limits: Limits,
    pub(crate) api_key: Option<String>,
    /// Room for the bytes of bodies that are parsed at the same time.
    pub(crate) parsing: Arc<Semaphore>,
    /// Room for the bytes of parsed bodies that wait for adapters.
    pub(crate) waiting: Arc<Semaphore>,
    /// Seconds since 1970.
    pub(crate) started: u64,
    /// Whether no more requests are taken.
    pub(crate) ending: AtomicBool,
    /// How many requests came.
    pub(crate) requests: AtomicU64,
    pub(crate) responses: ResponseCounts,
    pub(crate) ids: Ids,
    /// For bodies, prompts and grammars.
    pub(crate) workers: Workers,
    /// The thread that waits for texts to be embedded and scored: one for all, so that clients take turns.
    pub(crate) embedding: Workers,
}

/// The models, by the names that the API has for them. A request that names none is for the first.
pub(crate) struct Models {
    pub(crate) shared: Arc<Shared>,
    pub(crate) served: Vec<Arc<ServedModel>>,
}

impl Models {
    /// The model `name`, which may name an adapter of it; or the first.
    pub(crate) fn find(&self, name: Option<&str>) -> Result<Arc<ServedModel>, ApiError> {
        let Some(name) = name else {
            return self.served.first().cloned().ok_or_else(|| ApiError::no_model(""));
        };
        if let Some(model) = self.served.iter().find(|model| model.name == name) {
            return Ok(Arc::clone(model));
        }
        let adapted = self.served.iter().find_map(|model| {
            let adapter = name.strip_prefix(&model.name)?.strip_prefix(':')?;
            model.adapters.as_ref()?.pool.contains(adapter).then(|| Arc::new(model.adapted(adapter)))
        });
        adapted.ok_or_else(|| ApiError::no_model(name))
    }
}

#[derive(Clone)]
pub(crate) struct ServedModel {
    pub(crate) server: Arc<Shared>,
    pub(crate) engine: Engine,
    /// What the API calls the model.
    pub(crate) name: String,
    /// How tokens are chosen if a request does not say.
    pub(crate) sampling: SamplingParams,
    /// The maximum number of tokens of an answer.
    pub(crate) answer_tokens: usize,
    /// What drafts tokens.
    pub(crate) speculation: Option<Speculation>,
    /// The adapters that requests may name.
    pub(crate) adapters: Option<Arc<Adapters>>,
    /// The name of the adapter of its requests.
    pub(crate) adapter: Option<String>,
}

impl ServedModel {
    /// The model of `engine` under a name.
    ///
    /// # Errors
    /// If it has no tokenizer: there is no text to serve then.
    pub(crate) fn new(
        server: Arc<Shared>,
        name: String,
        engine: Engine,
        adapters: Option<Arc<Adapters>>,
        speculation: Option<Speculation>,
    ) -> Result<Self, Error> {
        let model = engine.model();
        model.tokenizer()?;
        // The checkpoint's sampling settings; OpenAI's defaults if it has none.
        let mut sampling = model.default_sampling().clone();
        if sampling.temperature == 0.0 {
            sampling.temperature = 1.0;
        }
        let context = model.capabilities().context;
        let answer_tokens = server.limits.answer_tokens.unwrap_or(context).min(context);
        Ok(Self { server, engine, name, sampling, answer_tokens, speculation, adapters, adapter: None })
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.server.limits
    }

    /// Fails for a model that only embeds and scores texts.
    pub(crate) fn expect_generation(&self) -> Result<(), ApiError> {
        match self.engine.model().capabilities().generation {
            true => Ok(()),
            false => Err(ApiError::no_generation(&self.name)),
        }
    }

    /// The tokenizer; a model is not served without one.
    pub(crate) fn tokenizer(&self) -> Result<&Tokenizer, ApiError> {
        Ok(self.engine.model().tokenizer()?)
    }

    /// What `work` makes of texts, some at a time: after each part it is another client's turn.
    ///
    /// # Errors
    /// The first one of `work`, and one when the time of a request is over.
    pub(crate) async fn in_turns<T: Clone + Send + 'static, R: Send + 'static>(
        &self,
        client: u64,
        texts: &[T],
        work: impl Fn(&[T], CancelToken) -> Result<R, ApiError> + Send + Sync + 'static,
    ) -> Result<Vec<R>, ApiError> {
        let left = CancelledOnDrop(CancelToken::new());
        let (started, work, mut results) = (Instant::now(), Arc::new(work), Vec::new());
        for part in texts.chunks(TEXTS_AT_ONCE) {
            if started.elapsed() > self.limits().time {
                return Err(ApiError::cut(FinishReason::TimeLimit));
            }
            let (part, work, cancel) = (part.to_vec(), Arc::clone(&work), left.0.clone());
            results.push(self.server.embedding.run(client, move || work(&part, cancel)).await??);
        }
        Ok(results)
    }

    /// Submits the requests of a body, which takes the time of waiting for an adapter, encoding their prompts
    /// and compiling their grammars.
    pub(crate) async fn submit<F>(
        self: &Arc<Self>,
        mut sender: Sender,
        span: RequestSpan,
        make: F,
    ) -> Result<Vec<ServedStream>, ApiError>
    where
        F: FnOnce(&mut dyn FnMut(Request<'_>) -> mlxcel_session::Result<()>) -> mlxcel_session::Result<()>
            + Send
            + 'static,
    {
        let adapter = self.acquire_adapter(&mut sender).await?;
        let (engine, share) = (self.engine.clone(), sender.share);
        let speculation = self.speculation.clone();
        let span = Arc::new(span);
        let submit = move || {
            let mut streams = Vec::new();
            let mut submit = |mut request: Request<'_>| {
                if streams.is_empty() {
                    span.asks(&request.options);
                }
                adapter.iter().for_each(|adapter| adapter.apply(&mut request.options));
                request.options.speculation.clone_from(&speculation);
                let stream = engine.submit(request.with_share(share))?.into_async();
                streams.push(ServedStream::new(stream, Arc::clone(&span)));
                Ok(())
            };
            let made = span.in_scope(|| make(&mut submit)).inspect_err(|error| span.failed(error));
            made.map(|()| streams)
        };
        Ok(self.server.workers.run(share.client, submit).await??)
    }
}

/// Seconds since 1970.
pub(crate) fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
