//! Adapters of the served models, and their handles for requests.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mlxcel_session::{
    Adapter, AdapterPool, CancelToken, Engine, Error, ErrorKind, Options, PooledAdapter, Result,
};

use crate::work::{CancelledOnDrop, Workers};

/// How many requests of a model may wait for adapters that have no slot.
const MOST_WAITING: usize = 256;

/// The pools of adapters, and what clients may do with them.
#[derive(Debug, Default)]
pub(crate) struct AdapterSettings {
    /// By the name of the model.
    pub(crate) pools: Vec<(String, AdapterPool)>,
    /// The folder whose folders clients may load.
    pub(crate) folder: Option<PathBuf>,
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
    pub(crate) pool: AdapterPool,
    pub(crate) folder: Option<PathBuf>,
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
    /// The handle of an adapter, if it is loaded.
    pub(crate) fn loaded(&self, name: &str) -> Result<Option<Acquired>> {
        let adapter = self.pool.loaded(name)?;
        Ok(adapter.map(|adapter| Acquired { adapter, waited: Duration::ZERO }))
    }

    /// The handle of an adapter, which is loaded if it is not, within `patience`.
    pub(crate) async fn acquire(&self, client: u64, name: &str, patience: Duration) -> Result<Acquired> {
        let started = Instant::now();
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
