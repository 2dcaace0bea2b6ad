//! How a server is made, and how it ends.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use axum::Router;
use mlxcel_session::mlxcel_core::setters;
use mlxcel_session::{AdapterPool, Engine, Error, ErrorKind, Result, Speculation};
use tokio::sync::Semaphore;

use crate::adapters::{AdapterSettings, refused};
use crate::body::PARSED_AT_ONCE;
use crate::ids::Ids;
use crate::limits::Limits;
use crate::origins::Origins;
use crate::response_counts::ResponseCounts;
use crate::routes;
use crate::served::{Models, ServedModel, Shared, unix_time};
use crate::work::Workers;

/// How many threads parse bodies, encode prompts and compile grammars.
const WORKERS: usize = 4;
/// How long work may go on after the last answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The models to serve, and how: see the [crate](crate)'s page.
#[derive(Debug)]
#[must_use]
pub struct Server {
    engines: Vec<(String, Engine)>,
    pub(crate) adapters: AdapterSettings,
    speculations: Vec<(String, Speculation)>,
    limits: Limits,
    api_key: Option<String>,
    origins: Option<Origins>,
    with_page: bool,
}

impl Server {
    /// Serves the model of `engine`, which the API calls `name`.
    pub fn new(name: impl Into<String>, engine: Engine) -> Self {
        Self {
            engines: vec![(name.into(), engine)],
            adapters: AdapterSettings::default(),
            speculations: Vec::new(),
            limits: Limits::default(),
            api_key: None,
            origins: None,
            with_page: false,
        }
    }

    /// Serves a further model.
    pub fn with_model(mut self, name: impl Into<String>, engine: Engine) -> Self {
        self.engines.push((name.into(), engine));
        self
    }

    /// Drafts tokens for the requests of a served model; no answer changes by it.
    pub fn with_speculation(mut self, model: impl Into<String>, speculation: Speculation) -> Self {
        self.speculations.push((model.into(), speculation));
        self
    }

    setters! {
        /// What requests may ask for.
        with_limits(limits: Limits) => limits = limits;

        /// Answers only requests with this key, as `Authorization: Bearer KEY` or `x-api-key: KEY`, except for
        /// the page, `/health` and `/openapi.json`. An application that knows its users has a layer of its
        /// own instead.
        with_api_key(key: impl Into<String>) => api_key = Some(key.into());

        /// Answers only requests for these hosts and from pages of these origins, which are told to browsers
        /// (CORS).
        with_origins(origins: Origins) => origins = Some(origins);

        /// Adds a page to chat on, at `/`. It needs a router that is mounted at the root, or behind a path that
        /// ends with `/`.
        with_page() => with_page = true;
    }

    /// Starts, and returns the routes: for an application that needs no graceful shutdown. Dropping the
    /// router ends what was started.
    ///
    /// # Errors
    ///
    /// Those of [`start`](Self::start).
    pub fn router(self) -> Result<Router> {
        Ok(self.start()?.router())
    }

    /// Serves the adapters of `pool` too, as `MODEL:ADAPTER`, where `MODEL` is the name of a served model
    /// that the pool is for.
    pub fn with_adapters(mut self, model: impl Into<String>, pool: AdapterPool) -> Self {
        self.adapters.pools.push((model.into(), pool));
        self
    }

    /// Lets clients load adapters from folders in `folder` into the pools of
    /// [`with_adapters`](Self::with_adapters), and unload them, with `/v1/load_lora_adapter` and
    /// `/v1/unload_lora_adapter`. Without it these paths do not exist.
    pub fn with_adapter_folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.adapters.folder = Some(folder.into());
        self
    }

    /// Starts the threads that parse bodies and encode prompts.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) if two models have one name, adapters or a speculation are of
    /// no model that is served, or the API key is empty, [`Io`](ErrorKind::Io) if the folder of adapters does not exist,
    /// [`ResourceExhausted`](ErrorKind::ResourceExhausted) if the system starts no thread, and the error
    /// of a model without tokenizer: there is no text to serve then.
    pub fn start(self) -> Result<Running> {
        let Self { engines, mut adapters, speculations, limits, api_key, origins, with_page } = self;
        for (index, (name, _)) in engines.iter().enumerate() {
            if engines[..index].iter().any(|(earlier, _)| earlier == name) {
                return Err(refused("two models have the same name").with_context("name", name));
            }
        }
        if api_key.as_ref().is_some_and(String::is_empty) {
            return Err(refused("the API key is empty").with_context("field", "api_key"));
        }
        adapters.check(&engines)?;
        let is_served = |name: &String| engines.iter().any(|(served, _)| served == name);
        if let Some((name, _)) = speculations.iter().find(|(name, _)| !is_served(name)) {
            let message = "tokens are to be drafted for a model that is not served";
            return Err(refused(message).with_context("name", name));
        }
        let shared = Arc::new(Shared {
            limits,
            api_key,
            parsing: Arc::new(Semaphore::new(PARSED_AT_ONCE)),
            waiting: Arc::new(Semaphore::new(PARSED_AT_ONCE)),
            started: unix_time(),
            ending: AtomicBool::default(),
            requests: AtomicU64::default(),
            responses: ResponseCounts::default(),
            ids: Ids::new(),
            workers: Workers::start("work", WORKERS).map_err(no_thread)?,
            embedding: Workers::start("embed", 1).map_err(no_thread)?,
        });
        let serve = |(name, engine): (String, Engine)| {
            let adapters = adapters.of(&name).map_err(no_thread)?;
            let speculation = speculations.iter().rfind(|(of, _)| *of == name);
            let speculation = speculation.map(|(_, speculation)| speculation.clone());
            ServedModel::new(Arc::clone(&shared), name, engine, adapters, speculation).map(Arc::new)
        };
        let served = engines.into_iter().map(serve).collect::<Result<_>>()?;
        Ok(Running { models: Arc::new(Models { shared, served }), origins, with_page })
    }
}

fn no_thread(error: io::Error) -> Error {
    let message = "the system cannot start another thread; raise its limit, such as `ulimit -u`";
    Error::new(ErrorKind::ResourceExhausted, "start server", message).with_source(error)
}

/// A server that has started. Clones are the same server.
#[derive(Clone)]
pub struct Running {
    models: Arc<Models>,
    origins: Option<Origins>,
    with_page: bool,
}

impl Running {
    /// The routes.
    pub fn router(&self) -> Router {
        routes::router(&self.models, self.origins.as_ref(), self.with_page)
    }

    /// Takes no more requests, and lets those that run finish for at most `grace`; what is late is cancelled,
    /// which ends its answer with an error.
    pub async fn shutdown(&self, grace: Duration) {
        self.models.shared.ending.store(true, Ordering::Relaxed);
        let models = Arc::clone(&self.models);
        let shutdown = move || {
            thread::scope(|scope| {
                for app in &models.served {
                    let ended =
                        thread::Builder::new().spawn_scoped(scope, move || app.engine.shutdown(grace));
                    if ended.is_err() {
                        // Without room for a thread they end one after another.
                        app.engine.shutdown(grace);
                    }
                }
            });
        };
        // A client of its own, so that it is soon its turn. It fails only if the workers have ended before.
        let _ = self.models.shared.workers.run(u64::MAX, shutdown).await;
    }

    /// Waits some seconds for the threads of requests that were dropped, when the runtime has ended: a
    /// process that ends under a thread in native code can crash.
    pub fn finish(self) {
        self.models.shared.embedding.finish(PATIENCE);
        for adapters in self.models.served.iter().filter_map(|app| app.adapters.as_ref()) {
            adapters.workers.finish(PATIENCE);
        }
        self.models.shared.workers.finish(PATIENCE);
    }
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = self.models.served.iter().map(|app| &app.name).collect();
        f.debug_struct("Running")
            .field("models", &names)
            .field("origins", &self.origins)
            .finish_non_exhaustive()
    }
}
