//! The engine that a program runs on, with what only the IREE engine can do.

use std::sync::Arc;

use mlxcel_core::Backend;
use mlxcel_session::select_backend;

use crate::Failure;

/// An engine as the arguments ask for it.
pub struct Engine {
    /// The engine.
    pub backend: Arc<dyn Backend>,
    #[cfg(feature = "iree")]
    profiler: Option<mlxcel_session::iree::profile::Profiler>,
}

impl Engine {
    /// The engine called `name`, or that which [`select_backend`] chooses; with `profile` it notes where the time of passes
    /// goes, with `kv_cache` it keeps keys and values in that type, and with `affinity` it places threads there, which are
    /// errors where it cannot.
    pub fn select(
        name: Option<&str>,
        profile: bool,
        kv_cache: Option<&str>,
        affinity: Option<&str>,
    ) -> Result<Self, Failure> {
        let backend = select_backend(name)?;
        if profile || kv_cache.is_some() || affinity.is_some() {
            return Self::iree(&*backend, profile, kv_cache, affinity);
        }
        Ok(Self {
            backend,
            #[cfg(feature = "iree")]
            profiler: None,
        })
    }

    #[cfg(feature = "iree")]
    fn iree(
        chosen: &dyn Backend,
        profile: bool,
        kv_cache: Option<&str>,
        affinity: Option<&str>,
    ) -> Result<Self, Failure> {
        use mlxcel_session::iree::{IreeBackend, profile::Profiler};

        let mut engine = IreeBackend::new();
        if engine.name() != chosen.name() {
            return Err(not_of(chosen, profile, kv_cache));
        }
        if let Some(kv_cache) = kv_cache {
            engine = engine.with_kv_cache(kv_cache.parse()?);
        }
        if let Some(affinity) = affinity {
            engine = engine.with_affinity(affinity.parse()?);
        }
        let profiler = profile.then(Profiler::new);
        if let Some(profiler) = &profiler {
            engine = engine.with_profiler(profiler);
        }
        Ok(Self { backend: Arc::new(engine), profiler })
    }

    #[cfg(not(feature = "iree"))]
    fn iree(
        chosen: &dyn Backend,
        profile: bool,
        kv_cache: Option<&str>,
        _affinity: Option<&str>,
    ) -> Result<Self, Failure> {
        Err(not_of(chosen, profile, kv_cache))
    }

    /// Where time went since the last call, as a table and as JSON; nothing for an engine that was not asked to note it.
    pub fn take_profile(&self) -> Option<(String, serde_json::Result<serde_json::Value>)> {
        #[cfg(feature = "iree")]
        if let Some(profiler) = &self.profiler {
            let profile = profiler.take();
            return Some((profile.to_string(), serde_json::to_value(&profile)));
        }
        None
    }
}

fn not_of(engine: &dyn Backend, profile: bool, kv_cache: Option<&str>) -> Failure {
    let option = match (profile, kv_cache) {
        (true, _) => "--profile",
        (false, Some(_)) => "--kv-cache",
        (false, None) => "--affinity",
    };
    Failure::Usage(format!("{option} is for the engine iree, and this is {}", engine.name()))
}
