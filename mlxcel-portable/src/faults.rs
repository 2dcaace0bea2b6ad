//! Fault injection in the executor, for tests of the session that graph engines share.

use std::sync::Arc;

use mlxcel_core::{Backend, Faults, LoadOptions, Model, ModelSource, Result};
use mlxcel_graph::FaultyExecutor;

use crate::backend::{NAME, PortableBackend, load};

impl PortableBackend {
    /// The engine with fault injection by `faults`, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn with_faults(self, faults: Faults) -> impl Backend {
        FaultyBackend { backend: self, faults }
    }
}

/// The engine on a [`FaultyExecutor`].
struct FaultyBackend {
    backend: PortableBackend,
    faults: Faults,
}

impl Backend for FaultyBackend {
    fn name(&self) -> &str {
        NAME
    }

    fn load(&self, source: &ModelSource, options: &LoadOptions) -> Result<Arc<dyn Model>> {
        load(source, options, self.backend.kv_cache, |executor| {
            FaultyExecutor::new(executor, self.faults.clone())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use mlxcel_conformance::{Subject, checks};
    use mlxcel_core::{FaultPoint, Precision};

    use super::*;

    fn subject() -> Subject<'static> {
        let llama = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/architectures/llama");
        Subject::new(PortableBackend::new(), llama)
            .with_load(LoadOptions::default().with_precision(Precision::Exact))
            .with_faulty(FaultPoint::ALL, |faults| Box::new(PortableBackend::new().with_faults(faults)))
    }

    #[test]
    fn a_sequence_that_saw_a_fault_is_poisoned_until_it_is_closed() {
        checks::faults_poison(&subject()).unwrap();
    }

    #[test]
    fn a_fault_spares_the_sequences_that_did_not_run() {
        checks::faults_spare_the_others(&subject()).unwrap();
    }

    #[test]
    fn a_failure_before_the_pass_poisons_no_sequence() {
        checks::faults_anywhere_are_recoverable(&subject()).unwrap();
    }
}
