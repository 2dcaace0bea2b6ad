//! The loaded model, shared by its sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mlxcel_core::{
    Adapter, AdapterSlots, Capabilities, InferenceSession, Model, ModelInfo, ModelSource, Result,
    SessionOptions,
};
use mlxcel_models::RopeEpochs;

use super::adapters::AdapterRoom;
use super::request::CacheId;
use super::session::MlxSession;
use super::thread::Engine;
use super::worker::Worker;

/// State shared by the sessions of a model.
pub(super) struct Shared {
    pub(super) worker: Worker<Engine>,
    pub(super) info: ModelInfo,
    pub(super) capabilities: Capabilities,
    /// The sequence lengths at which a cache must be recomputed.
    pub(super) epochs: RopeEpochs,
    pub(super) caches: AtomicU64,
    /// The adapters, if there is room for any.
    pub(super) adapters: Option<AdapterRoom>,
}

impl Shared {
    /// An unused number for a cache.
    pub(super) fn new_cache(&self) -> CacheId {
        CacheId(self.caches.fetch_add(1, Ordering::Relaxed))
    }
}

/// A decoder on MLX.
pub(super) struct MlxModel(pub(super) Arc<Shared>);

impl Model for MlxModel {
    fn info(&self) -> &ModelInfo {
        &self.0.info
    }

    fn capabilities(&self) -> &Capabilities {
        &self.0.capabilities
    }

    fn open_session(&self, options: &SessionOptions) -> Result<Box<dyn InferenceSession>> {
        let capacity = options.capacity_within(self.0.info.capacity)?;
        Ok(Box::new(MlxSession::new(Arc::clone(&self.0), capacity)))
    }

    fn load_adapter(&self, source: &ModelSource) -> Result<Adapter> {
        let Shared { adapters, worker, .. } = &*self.0;
        adapters.as_ref().ok_or_else(|| AdapterSlots::no_room("load adapter"))?.load(source, worker)
    }
}
