//! What becomes of sequences when a run fails: the executor is made to fail, for the session that engines share.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mlxcel_conformance::{Subject, checks};
use mlxcel_core::{
    Backend, CancelToken, Error, ErrorKind, LoadOptions, Model, ModelSource, Precision, Result,
};
use mlxcel_graph::{Executor, KvCacheType, ProgramShape, StateLayout, StepInputs, StepOutputs};

use crate::executor::{PortableExecutor, PortableState};
use crate::{PortableBackend, load};

/// Fails once, after so many good runs.
struct FailingExecutor {
    executor: PortableExecutor,
    good_runs: u64,
    runs: AtomicU64,
}

impl Executor for FailingExecutor {
    type State = PortableState;

    fn prepare(&self, shape: &ProgramShape, cancel: Option<&CancelToken>) -> Result<Duration> {
        self.executor.prepare(shape, cancel)
    }

    fn allocate(&self, layout: &StateLayout, length: usize) -> Result<PortableState> {
        self.executor.allocate(layout, length)
    }

    fn copy(
        &self,
        layout: &StateLayout,
        from: (&PortableState, usize),
        to: (&mut PortableState, usize),
        positions: usize,
    ) -> Result<()> {
        self.executor.copy(layout, from, to, positions)
    }

    fn read(
        &self,
        layout: &StateLayout,
        state: &PortableState,
        length: usize,
        positions: usize,
    ) -> Result<Vec<u8>> {
        self.executor.read(layout, state, length, positions)
    }

    fn write(
        &self,
        layout: &StateLayout,
        state: &mut PortableState,
        length: usize,
        positions: usize,
        bytes: &[u8],
    ) -> Result<()> {
        self.executor.write(layout, state, length, positions, bytes)
    }

    fn run(
        &self,
        shape: &ProgramShape,
        inputs: &StepInputs,
        states: &mut [&mut [PortableState]],
        logits: &[usize],
    ) -> Result<StepOutputs> {
        let outputs = self.executor.run(shape, inputs, states, logits);
        if self.runs.fetch_add(1, Ordering::Relaxed) == self.good_runs {
            return Err(Error::new(ErrorKind::Device, "run program", "the device failed, as it was told to"));
        }
        outputs
    }
}

/// The engine on a [`FailingExecutor`].
struct FailingBackend(u64);

impl Backend for FailingBackend {
    fn name(&self) -> &str {
        crate::NAME
    }

    fn load(&self, source: &ModelSource, options: &LoadOptions) -> Result<Arc<dyn Model>> {
        let (good_runs, runs) = (self.0, AtomicU64::new(0));
        load(source, options, KvCacheType::default(), |executor| FailingExecutor {
            executor,
            good_runs,
            runs,
        })
    }
}

fn subject() -> Subject<'static> {
    let llama = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/architectures/llama");
    Subject::new(PortableBackend::new(), llama)
        .with_load(LoadOptions::default().with_precision(Precision::Exact))
        .with_faulty(|passes| Box::new(FailingBackend(passes)))
}

#[test]
fn a_sequence_that_saw_a_fault_is_poisoned_until_it_is_closed() {
    checks::faults_poison(&subject()).unwrap();
}

#[test]
fn a_fault_spares_the_sequences_that_did_not_run() {
    checks::faults_spare_the_others(&subject()).unwrap();
}
