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
    /// goes, which is an error where it cannot.
    pub fn select(name: Option<&str>, profile: bool) -> Result<Self, Failure> {
        let backend = select_backend(name)?;
        if profile {
            return Self::profiled(&*backend);
        }
        Ok(Self {
            backend,
            #[cfg(feature = "iree")]
            profiler: None,
        })
    }

    #[cfg(feature = "iree")]
    fn profiled(chosen: &dyn Backend) -> Result<Self, Failure> {
        use mlxcel_session::iree::{IreeBackend, profile::Profiler};

        let engine = IreeBackend::new();
        if engine.name() != chosen.name() {
            return Err(not_profiled(chosen));
        }
        let profiler = Profiler::new();
        Ok(Self { backend: Arc::new(engine.with_profiler(&profiler)), profiler: Some(profiler) })
    }

    #[cfg(not(feature = "iree"))]
    fn profiled(chosen: &dyn Backend) -> Result<Self, Failure> {
        Err(not_profiled(chosen))
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

fn not_profiled(engine: &dyn Backend) -> Failure {
    Failure::Usage(format!("--profile is for the engine iree, and this is {}", engine.name()))
}
