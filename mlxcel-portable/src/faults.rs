//! What becomes of sequences when a run fails: the executor is made to fail, for the session that engines share.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mlxcel_conformance::{Subject, checks};
use mlxcel_core::{
    Backend, CancelToken, Error, ErrorKind, LoadOptions, Model, ModelSource, Precision, Result, Row,
    SessionOptions, StepOutput,
};
use mlxcel_graph::{Executor, KvCacheType, ProgramShape, RunError, StateLayout, StepInputs, StepOutputs};

use crate::executor::{PortableExecutor, PortableState};
use crate::{PortableBackend, load};

/// Fails once, after so many good runs.
struct FailingExecutor {
    executor: PortableExecutor,
    good_runs: u64,
    runs: AtomicU64,
    /// Whether it fails after the program ran, or before it begins.
    begins: bool,
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
    ) -> Result<StepOutputs, RunError> {
        let fails = self.runs.fetch_add(1, Ordering::Relaxed) == self.good_runs;
        let error = || Error::new(ErrorKind::Device, "run program", "the device failed, as it was told to");
        if fails && !self.begins {
            return Err(RunError::before(error()));
        }
        let outputs = self.executor.run(shape, inputs, states, logits);
        if fails { Err(error().into()) } else { outputs }
    }
}

/// The engine on a [`FailingExecutor`].
struct FailingBackend {
    good_runs: u64,
    begins: bool,
}

impl Backend for FailingBackend {
    fn name(&self) -> &str {
        crate::NAME
    }

    fn load(&self, source: &ModelSource, options: &LoadOptions) -> Result<Arc<dyn Model>> {
        let (good_runs, begins, runs) = (self.good_runs, self.begins, AtomicU64::new(0));
        load(source, options, KvCacheType::default(), |executor| FailingExecutor {
            executor,
            good_runs,
            runs,
            begins,
        })
    }
}

fn subject() -> Subject<'static> {
    let llama = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/architectures/llama");
    Subject::new(PortableBackend::new(), llama)
        .with_load(LoadOptions::default().with_precision(Precision::Exact))
        .with_faulty(|passes| Box::new(FailingBackend { good_runs: passes, begins: true }))
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
fn a_failure_before_anything_ran_harms_no_sequence() {
    let llama = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/architectures/llama");
    let options = LoadOptions::default().with_precision(Precision::Exact);
    let logits = |good_runs| {
        let backend = FailingBackend { good_runs, begins: false };
        let model = backend.load(&llama.as_path().into(), &options).unwrap();
        let mut session = model.open_session(&SessionOptions::default()).unwrap();
        let sequence = session.open().unwrap();
        let mut out = StepOutput::default();
        let mut failures = 0;
        for tokens in [[1, 2, 3], [4, 5, 6]] {
            loop {
                session.step(&[Row::logits(sequence, &tokens)], &Default::default(), &mut out).unwrap();
                match &out.rows()[0] {
                    Ok(_) => break,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Device),
                }
                failures += 1;
            }
        }
        (format!("{:?}", out.rows()[0]), failures)
    };
    // The second pass fails once, and does then what it would have done.
    assert_eq!((logits(1).1, logits(u64::MAX).1), (1, 0));
    assert_eq!(logits(1).0, logits(u64::MAX).0);
}
