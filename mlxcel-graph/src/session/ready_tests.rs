//! Steps that do not wait for the compiler.

use mlxcel_core::{Control, InferenceSession, Row, SamplingPlan, SequenceId, StepOutput, Want};

use crate::model::GraphModelOptions;
use crate::recorder::{Recorder, decoder_of, session_on};
use crate::shared::IndependentRows;

struct Driver {
    executor: Recorder,
    session: Box<dyn InferenceSession>,
    sequences: Vec<SequenceId>,
}

impl Driver {
    fn new(independent_rows: IndependentRows) -> Self {
        let options = GraphModelOptions {
            capacity: Some(200),
            sequences: 4,
            chunks: vec![16, 64],
            independent_rows,
            ..GraphModelOptions::default()
        };
        let executor = Recorder::default();
        let mut session = session_on(executor.clone(), &decoder_of("llama"), &options);
        let sequences = (0..4).map(|_| session.open().unwrap()).collect();
        Self { executor, session, sequences }
    }

    /// Runs a step whose rows have so many tokens; the rows of its passes.
    fn step(&mut self, tokens: &[usize], prefer_ready: bool) -> Vec<Vec<usize>> {
        let tokens: Vec<_> = tokens.iter().map(|&tokens| vec![1; tokens]).collect();
        let plan = SamplingPlan::greedy();
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
        std::mem::take(&mut self.executor.record().ran).into_iter().map(|shape| shape.rows).collect()
    }

    /// The rows of the programs that steps waited for, and of those that were announced, since the last call.
    fn compiled(&self) -> [Vec<Vec<usize>>; 2] {
        let mut record = self.executor.record();
        let awaited = std::mem::take(&mut record.awaited);
        let announced = std::mem::take(&mut record.announced);
        [
            awaited.into_iter().map(|shape| shape.rows).collect(),
            announced.into_iter().map(|shape| shape.rows).collect(),
        ]
    }

    /// What was announced is compiled.
    fn finish(&self, rows: &[usize]) {
        let mut record = self.executor.record();
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
