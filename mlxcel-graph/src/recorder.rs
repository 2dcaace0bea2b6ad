//! An executor that computes nothing, for tests of sessions.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use mlxcel_core::{CancelToken, InferenceSession, Model, ModelInfo, Result, SessionOptions};
use mlxcel_models::{Checkpoint, Decoder};

use crate::executor::{Executor, Prepared, RunError, StepInputs, StepOutputs};
use crate::model::{GraphModel, GraphModelOptions};
use crate::shape::ProgramShape;
use crate::state::StateLayout;

/// An executor that computes nothing and records its calls.
#[derive(Clone, Default)]
pub(crate) struct Recorder(Arc<Mutex<Record>>);

#[derive(Default)]
pub(crate) struct Record {
    /// Programs that were requested, or are ready because a test says so.
    pub(crate) ready: BTreeSet<ProgramShape>,
    /// Of those, programs that a step waited for.
    pub(crate) awaited: Vec<ProgramShape>,
    /// Programs that were requested together with others.
    pub(crate) together: Vec<Vec<ProgramShape>>,
    /// Programs that were announced before they were ready.
    pub(crate) announced: BTreeSet<ProgramShape>,
    pub(crate) ran: Vec<ProgramShape>,
}

impl Recorder {
    pub(crate) fn record(&self) -> MutexGuard<'_, Record> {
        self.0.lock().unwrap()
    }
}

impl Executor for Recorder {
    type State = ();
    type Program = ProgramShape;

    fn prepare(&self, shape: &ProgramShape, _: Option<&CancelToken>) -> Result<Prepared<ProgramShape>> {
        let mut record = self.record();
        if record.ready.insert(shape.clone()) {
            record.awaited.push(shape.clone());
        }
        Ok(Prepared { program: shape.clone(), compile_time: Duration::ZERO })
    }

    fn prepare_together(&self, shapes: &[ProgramShape], cancel: Option<&CancelToken>) -> Result<Duration> {
        self.record().together.push(shapes.to_vec());
        shapes.iter().map(|shape| Ok(self.prepare(shape, cancel)?.compile_time)).sum()
    }

    fn prepare_ahead(&self, shape: &ProgramShape) -> bool {
        let is_ready = self.is_ready(shape);
        if !is_ready {
            self.record().announced.insert(shape.clone());
        }
        is_ready
    }

    fn is_ready(&self, shape: &ProgramShape) -> bool {
        self.record().ready.contains(shape)
    }

    fn allocate(&self, _: &StateLayout, _: usize) -> Result<()> {
        Ok(())
    }

    fn copy(&self, _: &StateLayout, _: (&(), usize), _: (&mut (), usize), _: usize) -> Result<()> {
        Ok(())
    }

    fn read(&self, layout: &StateLayout, (): &(), _: usize, positions: usize) -> Result<Vec<u8>> {
        Ok(vec![0; layout.bytes(positions)])
    }

    fn write(&self, _: &StateLayout, (): &mut (), _: usize, _: usize, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn run(
        &self,
        shape: &ProgramShape,
        inputs: &StepInputs,
        states: &mut [&mut [()]],
        wanted: &[usize],
    ) -> Result<StepOutputs, RunError> {
        assert_eq!((inputs.tokens.len(), states.len()), (shape.tokens(), shape.rows.len()));
        assert!(wanted.iter().all(|&row| row < shape.output_rows()));
        self.record().ran.push(shape.clone());
        Ok(StepOutputs {
            best: vec![(0, 0.0); shape.output_rows()],
            values: vec![vec![0.0; 4]; wanted.len()],
            ..StepOutputs::default()
        })
    }
}

/// The decoder of an architecture's fixture.
pub(crate) fn decoder_of(architecture: &str) -> Decoder {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/architectures").join(architecture);
    Checkpoint::open(folder).unwrap().decoder().unwrap()
}

/// A session on `executor`.
pub(crate) fn session_on<E: Executor>(
    executor: E,
    decoder: &Decoder,
    options: &GraphModelOptions,
) -> Box<dyn InferenceSession> {
    let info = ModelInfo::new("recorder", "recorder", decoder.vocabulary_size);
    let model = GraphModel::new(executor, decoder, info, options).unwrap();
    model.open_session(&SessionOptions::default()).unwrap()
}
