//! Steps that do not wait for the compiler.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mlxcel_core::{
    CancelToken, Capabilities, Control, InferenceSession, Model, ModelInfo, Result, Row, SamplingParams,
    SamplingPlan, SequenceId, SessionOptions, StepOutput, Want,
};
use mlxcel_models::Checkpoint;

use crate::executor::{Executor, Prepared, RunError, StepInputs, StepOutputs};
use crate::model::{GraphModel, GraphModelOptions};
use crate::shape::ProgramShape;
use crate::shared::IndependentRows;
use crate::state::StateLayout;

/// An executor whose programs are ready when the test says so, and computes nothing.
#[derive(Clone, Default)]
struct Slow(Arc<Mutex<Record>>);

#[derive(Default)]
struct Record {
    ready: BTreeSet<ProgramShape>,
    announced: BTreeSet<ProgramShape>,
    /// Programs that a step waited for.
    awaited: Vec<ProgramShape>,
    ran: Vec<Vec<usize>>,
}

impl Executor for Slow {
    type State = ();
    type Program = ProgramShape;

    fn prepare(&self, shape: &ProgramShape, _: Option<&CancelToken>) -> Result<Prepared<ProgramShape>> {
        let mut record = self.0.lock().unwrap();
        if record.ready.insert(shape.clone()) {
            record.awaited.push(shape.clone());
        }
        Ok(Prepared { program: shape.clone(), compile_time: Duration::ZERO })
    }

    fn prepare_ahead(&self, shape: &ProgramShape) -> bool {
        let mut record = self.0.lock().unwrap();
        record.announced.insert(shape.clone());
        record.ready.contains(shape)
    }

    fn is_ready(&self, shape: &ProgramShape) -> bool {
        self.0.lock().unwrap().ready.contains(shape)
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
        _: &StepInputs,
        _: &mut [&mut [()]],
        wanted: &[usize],
    ) -> Result<StepOutputs, RunError> {
        self.0.lock().unwrap().ran.push(shape.rows.clone());
        let best = vec![(0, 0.0); shape.output_rows()];
        let values = vec![vec![0.0; 4]; wanted.len()];
        Ok(StepOutputs { best, values, ..StepOutputs::default() })
    }
}

struct Driver {
    executor: Slow,
    session: Box<dyn InferenceSession>,
    sequences: Vec<SequenceId>,
}

impl Driver {
    fn new(independent_rows: IndependentRows) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/architectures/llama");
        let decoder = Checkpoint::open(folder).unwrap().decoder().unwrap();
        let options = GraphModelOptions {
            capacity: Some(200),
            sequences: 4,
            chunks: vec![16, 64],
            independent_rows,
            ..GraphModelOptions::default()
        };
        let info = ModelInfo::new("slow", "llama", decoder.vocabulary_size);
        let executor = Slow::default();
        let model = GraphModel::new(executor.clone(), &decoder, info, &options).unwrap();
        let mut session = model.open_session(&SessionOptions::default()).unwrap();
        let sequences = (0..4).map(|_| session.open().unwrap()).collect();
        Self { executor, session, sequences }
    }

    /// Runs a step whose rows have so many tokens; the rows of its passes.
    fn step(&mut self, tokens: &[usize], prefer_ready: bool) -> Vec<Vec<usize>> {
        let tokens: Vec<_> = tokens.iter().map(|&tokens| vec![1; tokens]).collect();
        let plan = SamplingPlan::negotiate(&SamplingParams::default(), &Capabilities::new(1, 1)).unwrap();
        let rows: Vec<_> = self
            .sequences
            .iter()
            .zip(&tokens)
            .map(|(&sequence, tokens)| Row::new(sequence, tokens, Want::token(&plan)))
            .collect();
        let mut out = StepOutput::default();
        let control = Control::default().with_prefer_ready(prefer_ready);
        self.session.step(&rows, &control, &mut out).unwrap();
        assert!(out.take().into_iter().all(|row| row.is_ok()));
        std::mem::take(&mut self.executor.0.lock().unwrap().ran)
    }

    /// The rows of the programs that steps waited for, and of those that were announced, since the last call.
    fn compiled(&self) -> [Vec<Vec<usize>>; 2] {
        let mut record = self.executor.0.lock().unwrap();
        let awaited = std::mem::take(&mut record.awaited);
        let announced = std::mem::take(&mut record.announced);
        [
            awaited.into_iter().map(|shape| shape.rows).collect(),
            announced.into_iter().map(|shape| shape.rows).collect(),
        ]
    }

    /// What was announced is compiled.
    fn finish(&self, rows: &[usize]) {
        let mut record = self.executor.0.lock().unwrap();
        let mut shape = record.ready.first().unwrap().clone();
        shape.rows = rows.to_vec();
        record.ready.insert(shape);
    }
}

#[test]
fn a_step_runs_by_ready_programs_until_that_of_all_rows_is_compiled() {
    let mut driver = Driver::new(IndependentRows::No);
    // As after loading: the smallest chunk, and a decoding row.
    assert_eq!(driver.step(&[16], false), [[16]]);
    assert_eq!(driver.step(&[1], false), [[1]]);
    driver.compiled();
    assert_eq!(driver.step(&[1; 4], true), [[1]; 4]);
    assert_eq!(driver.compiled(), [vec![], vec![vec![1; 4]]]);
    driver.finish(&[1; 3]);
    assert_eq!(driver.step(&[1; 4], true), [vec![1; 3], vec![1]]);
    driver.finish(&[1; 4]);
    assert_eq!(driver.step(&[1; 4], true), [[1; 4]]);
    assert_eq!(driver.step(&[16, 1, 1], true), [vec![16], vec![1], vec![1]]);
    assert_eq!(driver.compiled(), [vec![], vec![vec![1; 4], vec![16, 1, 1]]]);
    // Whoever does not say so waits, and takes the fewest passes.
    assert_eq!(driver.step(&[1; 2], false), [[1; 2]]);
    assert_eq!(driver.compiled()[0], [[1; 2]]);
}

#[test]
fn a_chunk_is_divided_over_smaller_programs_only_if_results_are_the_same() {
    for (independent, passes) in
        [(IndependentRows::Several, vec![vec![16]; 4]), (IndependentRows::No, vec![vec![64]])]
    {
        let mut driver = Driver::new(independent);
        assert_eq!(driver.step(&[16], false), [[16]]);
        assert_eq!(driver.step(&[64], true), passes, "{independent:?}");
    }
}
