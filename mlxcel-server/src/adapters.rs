//! Adapters of the served models: a request names one as `MODEL:ADAPTER`. Paths to load and unload them have the names and fields that
//! vLLM has for them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::post;
use mlxcel_session::{
    Adapter, AdapterPool, CancelToken, Engine, Error, ErrorKind, Options, PooledAdapter, Result,
};
use serde::Deserialize;

use crate::body::{Asked, Body};
use crate::failure::ApiError;
use crate::served::{Models, ServedModel};
use crate::server::Server;
use crate::work::{CancelledOnDrop, Workers};

/// How many requests of a model may wait for adapters that have no slot.
const MOST_WAITING: usize = 256;

/// What the server is to know of adapters.
#[derive(Debug, Default)]
pub(crate) struct AdapterSettings {
    /// By the name of the model.
    pools: Vec<(String, AdapterPool)>,
    /// The folder whose folders clients may load.
    folder: Option<PathBuf>,
}

impl Server {
    /// Serves the adapters of `pool` too, as `MODEL:ADAPTER`, where `MODEL` is the name of a served model that the pool is for.
    pub fn with_adapters(mut self, model: impl Into<String>, pool: AdapterPool) -> Self {
        self.adapters.pools.push((model.into(), pool));
        self
    }

    /// Lets clients load adapters from folders in `folder` into the pools of [`with_adapters`](Self::with_adapters), and unload them, with
    /// `/v1/load_lora_adapter` and `/v1/unload_lora_adapter`. Without it these paths do not exist.
    pub fn with_adapter_folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.adapters.folder = Some(folder.into());
        self
    }
}

impl AdapterSettings {
    /// Fails if they are not of one of these models, or the folder does not exist.
    pub(crate) fn check(&mut self, engines: &[(String, Engine)]) -> Result<()> {
        let refuse = |message, name: &str| {
            let error = Error::new(ErrorKind::InvalidInput, "start server", message);
            Err(error.with_context("field", "adapters").with_context("name", name))
        };
        for (index, (name, _)) in self.pools.iter().enumerate() {
            if !engines.iter().any(|(served, _)| served == name) {
                return refuse("the adapters are of a model that is not served", name);
            }
            if self.pools[..index].iter().any(|(earlier, _)| earlier == name) {
                return refuse("a model has two pools of adapters", name);
            }
        }
        if let Some(folder) = &mut self.folder {
            let found = folder.canonicalize();
            *folder = found.map_err(|error| Error::io("start server", folder, error))?;
        }
        Ok(())
    }

    /// The adapters of a model, with a thread to load them.
    pub(crate) fn of(&self, model: &str) -> std::io::Result<Option<Arc<Adapters>>> {
        let Some((_, pool)) = self.pools.iter().find(|(name, _)| name == model) else { return Ok(None) };
        let workers = Workers::start("adapters", 1)?;
        let (pool, folder, waiting) = (pool.clone(), self.folder.clone(), AtomicUsize::default());
        Ok(Some(Arc::new(Adapters { pool, folder, workers, waiting })))
    }
}

/// The adapters of a served model.
pub(crate) struct Adapters {
    pool: AdapterPool,
    folder: Option<PathBuf>,
    /// The thread that loads adapters, and waits for slots.
    workers: Workers,
    /// How many requests wait for it.
    waiting: AtomicUsize,
}

/// An adapter for a request, and how long the request has waited for it.
#[derive(Clone)]
pub(crate) struct Acquired {
    adapter: Adapter,
    waited: Duration,
}

impl Acquired {
    /// Sets the adapter; the time is taken from that of the request.
    pub(crate) fn apply(&self, options: &mut Options) {
        options.adapter = Some(self.adapter.clone());
        options.time_limit = options.time_limit.map(|limit| limit.saturating_sub(self.waited));
    }
}

/// One of the requests that wait.
struct Waits<'a>(&'a AtomicUsize);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Adapters {
    /// The handle of an adapter, which is loaded if it is not, within `patience`.
    async fn acquire(&self, client: u64, name: &str, patience: Duration) -> Result<Acquired> {
        let started = Instant::now();
        if let Some(adapter) = self.pool.loaded(name)? {
            return Ok(Acquired { adapter, waited: Duration::ZERO });
        }
        let busy = || {
            let message = "requests need all slots for adapters; try again later";
            Error::new(ErrorKind::ResourceExhausted, "acquire adapter", message)
                .with_context("adapter", name.escape_debug())
        };
        let before = self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waits = Waits(&self.waiting);
        if before >= MOST_WAITING {
            return Err(busy());
        }
        let left = CancelledOnDrop(CancelToken::new());
        let (pool, own, cancel) = (self.pool.clone(), name.to_owned(), left.0.clone());
        let acquire = move || pool.acquire(&own, patience.saturating_sub(started.elapsed()), &cancel);
        match tokio::time::timeout(patience, self.workers.run(client, acquire)).await {
            Ok(acquired) => Ok(Acquired { adapter: acquired??, waited: started.elapsed() }),
            // It waits behind others.
            Err(_) => Err(busy()),
        }
    }

    /// The adapters, by name.
    pub(crate) fn list(&self) -> Vec<PooledAdapter> {
        self.pool.list()
    }

    /// Whether there is an adapter of this name.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.pool.contains(name)
    }

    /// Waits some seconds for what is being loaded.
    pub(crate) fn finish(&self, patience: Duration) {
        self.workers.finish(patience);
    }
}

impl ServedModel {
    /// The same model with an adapter.
    pub(crate) fn adapted(&self, adapter: &str) -> Self {
        Self {
            server: Arc::clone(&self.server),
            engine: self.engine.clone(),
            name: format!("{}:{adapter}", self.name),
            sampling: self.sampling.clone(),
            answer_tokens: self.answer_tokens,
            adapters: self.adapters.clone(),
            adapter: Some(adapter.to_owned()),
        }
    }

    /// This model with each of its adapters.
    pub(crate) fn adapted_models(&self) -> impl Iterator<Item = Self> {
        let adapters = self.adapters.as_ref().map(|adapters| adapters.list()).unwrap_or_default();
        adapters.into_iter().map(|adapter| self.adapted(&adapter.name))
    }

    /// The name of the model without the adapter, if it has one.
    pub(crate) fn parent(&self) -> Option<&str> {
        self.name.strip_suffix(self.adapter.as_ref()?)?.strip_suffix(':')
    }

    /// The adapter of this model's requests, if it has one, for a request of `client`.
    pub(crate) async fn acquire_adapter(&self, client: u64) -> Result<Option<Acquired>, ApiError> {
        let (Some(adapters), Some(name)) = (&self.adapters, &self.adapter) else { return Ok(None) };
        match adapters.acquire(client, name, self.limits().time).await {
            Ok(acquired) => Ok(Some(acquired)),
            // It was unloaded since the request came.
            Err(error) if error.kind() == ErrorKind::NotFound && !adapters.contains(name) => {
                Err(ApiError::no_model(&self.name))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Fails for a request that names an adapter, where what it wants is computed without one.
    pub(crate) fn expect_no_adapter(&self, what: &str) -> Result<(), ApiError> {
        match self.adapter {
            None => Ok(()),
            Some(_) => Err(ApiError::unsupported("model", &format!("{what} with an adapter"))),
        }
    }

    /// The figures of requests with adapters, by their names: requests, tokens of prompts, reused ones, and generated tokens. Adapters
    /// without a name, such as those that were unloaded, are `other`: names are as many as adapters.
    pub(crate) fn adapter_figures(&self) -> BTreeMap<String, [u64; 4]> {
        let mut figures = BTreeMap::<String, [u64; 4]>::new();
        let named = self.adapters.as_ref().map(|adapters| adapters.list()).unwrap_or_default();
        for stats in self.engine.adapter_stats() {
            let name = named.iter().find(|own| own.identity.is_some() && own.identity == stats.adapter);
            let name = name.map_or("other", |own| &own.name).to_owned();
            let own = [stats.requests, stats.prompt_tokens, stats.reused_tokens, stats.generated_tokens];
            let sums = figures.entry(name).or_default();
            sums.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
        }
        figures
    }
}

/// Adds the paths to load and unload adapters, if clients may.
pub(crate) fn routes(router: Router<Arc<Models>>, models: &Models) -> Router<Arc<Models>> {
    let is_allowed = |app: &Arc<ServedModel>| app.adapters.as_ref().is_some_and(|own| own.folder.is_some());
    if !models.served.iter().any(is_allowed) {
        return router;
    }
    router.route("/v1/load_lora_adapter", post(load)).route("/v1/unload_lora_adapter", post(unload))
}

#[derive(Deserialize)]
pub(crate) struct LoadRequest {
    model: Option<String>,
    lora_name: String,
    lora_path: PathBuf,
}

#[derive(Deserialize)]
pub(crate) struct UnloadRequest {
    model: Option<String>,
    lora_name: String,
}

impl Asked for LoadRequest {
    const REQUIRED: &'static str = "lora_name";

    fn fields() -> Vec<&'static str> {
        vec!["model", "lora_name", "lora_path"]
    }

    fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }
}

impl Asked for UnloadRequest {
    const REQUIRED: &'static str = "lora_name";

    fn fields() -> Vec<&'static str> {
        vec!["model", "lora_name"]
    }

    fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }
}

/// The adapters of a model that clients may change, and their folder.
fn changeable(app: &ServedModel) -> Result<(&Arc<Adapters>, &Path), ApiError> {
    let adapters = app.adapters.as_ref().filter(|_| app.adapter.is_none());
    let found = adapters.and_then(|adapters| Some((adapters, adapters.folder.as_deref()?)));
    found.ok_or_else(|| ApiError::unsupported("model", "adapters of this model"))
}

async fn load(Body { request, app, sender }: Body<LoadRequest>) -> Result<String, ApiError> {
    let (adapters, folder) = changeable(&app)?;
    let (pool, folder) = (adapters.pool.clone(), folder.to_owned());
    let LoadRequest { lora_name: name, lora_path: path, .. } = request;
    let done = format!("Success: LoRA adapter '{name}' added successfully.");
    let add = move || {
        // The same answer for what does not exist and what is elsewhere.
        let found = folder.join(&path).canonicalize().ok().filter(|found| found.starts_with(&folder));
        let found = found.ok_or_else(|| {
            ApiError::invalid("lora_path", "there is no such folder in the folder of adapters of this server")
        })?;
        pool.add(&name, found).map_err(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::Corrupt => ApiError::invalid("lora_path", error.to_string()),
            _ => error.into(),
        })
    };
    // It does not wait for a slot, and should not wait behind requests that do.
    app.server.workers.run(sender.share.client, add).await??;
    Ok(done)
}

async fn unload(Body { request, app, .. }: Body<UnloadRequest>) -> Result<String, ApiError> {
    let (adapters, _) = changeable(&app)?;
    let name = request.lora_name;
    if adapters.pool.remove(&name).is_err() {
        return Err(ApiError::no_model(&format!("{}:{name}", app.name)));
    }
    Ok(format!("Success: LoRA adapter '{name}' removed successfully."))
}
