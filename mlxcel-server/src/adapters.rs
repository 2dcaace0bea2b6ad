//! Adapters of the served models, and their handles for requests.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mlxcel_session::{Adapter, AdapterPool, CancelToken, Engine, Error, ErrorKind, Options, Result};
use tokio::sync::Semaphore;

use crate::work::{CancelledOnDrop, Workers};

/// How many requests of a model may wait for adapters that have no slot.
const MOST_WAITING: usize = 256;

/// The error of settings with which a server does not start.
pub(crate) fn refused(message: &'static str) -> Error {
    Error::new(ErrorKind::InvalidInput, "start server", message)
}

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
            Err(refused(message).with_context("field", "adapters").with_context("name", name))
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
        let (pool, folder, waiting) = (pool.clone(), self.folder.clone(), Semaphore::new(MOST_WAITING));
        Ok(Some(Arc::new(Adapters { pool, folder, workers, waiting })))
    }
}

/// The adapters of a served model.
pub(crate) struct Adapters {
    pub(crate) pool: AdapterPool,
    pub(crate) folder: Option<PathBuf>,
    /// The thread that loads adapters, and waits for slots.
    pub(crate) workers: Workers,
    /// Room for requests that wait for it.
    waiting: Semaphore,
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
        let Ok(_waits) = self.waiting.try_acquire() else { return Err(busy()) };
        let left = CancelledOnDrop(CancelToken::new());
        let (pool, own, cancel) = (self.pool.clone(), name.to_owned(), left.0.clone());
        let acquire = move || pool.acquire(&own, patience.saturating_sub(started.elapsed()), &cancel);
        match tokio::time::timeout(patience, self.workers.run(client, acquire)).await {
            Ok(acquired) => Ok(Acquired { adapter: acquired??, waited: started.elapsed() }),
            // It waits behind others.
            Err(_) => Err(busy()),
        }
    }
}
