//! Draft tokens of models whose states cannot drop them, in rows of several passes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use mlxcel_core::{
    CancelToken, Control, InferenceSession, InferenceSessionExt, Result, Row, SamplingPlan, TokenId, Want,
};
use mlxcel_models::StateShape;

use crate::executor::{Executor, Prepared, RunError, StepInputs, StepOutputs};
use crate::model::GraphModelOptions;
use crate::recorder::{decoder_of, session_on};
use crate::shape::{Lengths, ProgramShape};
use crate::state::StateLayout;

/// An executor whose states are the tokens that they were computed from, which every run compares with the
/// tokens of the sequence.
#[derive(Clone, Default)]
struct Recorder {
    tokens: Arc<Mutex<Vec<TokenId>>>,
}

#[derive(Clone)]
struct Recorded {
    layout: StateLayout,
    /// The tokens by slot; all tokens of a recurrence.
    slots: Vec<Option<(usize, TokenId)>>,
}

impl Recorded {
    /// Checks that the state is one before `position` of a sequence of `tokens`.
    fn check(&self, tokens: &[TokenId], position: usize) {
        let seen = match self.layout.kept {
            StateShape::Cache { window: Some(window), .. } => (position + 1).saturating_sub(window)..position,
            _ => 0..position,
        };
        assert!(!self.layout.is_recurrent() || self.slots.len() == position, "{:?}", self.layout);
        for at in seen {
            assert_eq!(self.slots[self.slot(at)], Some((at, tokens[at])), "{:?}", self.layout);
        }
    }

    fn slot(&self, position: usize) -> usize {
        if self.layout.is_recurrent() { position } else { position % self.slots.len() }
    }

    fn add(&mut self, position: usize, token: TokenId) {
        if self.layout.is_recurrent() {
            self.slots.push(None);
        }
        let slot = self.slot(position);
        self.slots[slot] = Some((position, token));
    }
}

impl Executor for Recorder {
    type State = Recorded;
    type Program = ProgramShape;

    fn prepare(&self, shape: &ProgramShape, _: Option<&CancelToken>) -> Result<Prepared<ProgramShape>> {
        Ok(Prepared { program: shape.clone(), compile_time: Duration::ZERO })
    }

    fn allocate(&self, layout: &StateLayout, length: usize) -> Result<Recorded> {
        let slots = vec![None; layout.room(length).unwrap_or_default()];
        Ok(Recorded { layout: layout.clone(), slots })
    }

    fn copy(
        &self,
        layout: &StateLayout,
        (from, old): (&Recorded, usize),
        (to, new): (&mut Recorded, usize),
        positions: usize,
    ) -> Result<()> {
        let rooms = (layout.room(old), layout.room(new));
        let (Some(old), Some(new)) = rooms else {
            to.slots.clone_from(&from.slots);
            return Ok(());
        };
        assert_eq!((from.slots.len(), to.slots.len()), (old, new));
        let rows = layout.room(positions).unwrap();
        to.slots[..rows].clone_from_slice(&from.slots[..rows]);
        Ok(())
    }

    fn read(&self, _: &StateLayout, _: &Recorded, _: usize, _: usize) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }

    fn write(&self, _: &StateLayout, _: &mut Recorded, _: usize, _: usize, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn run(
        &self,
        shape: &ProgramShape,
        inputs: &StepInputs,
        states: &mut [&mut [Recorded]],
        wanted: &[usize],
    ) -> Result<StepOutputs, RunError> {
        let tokens = self.tokens.lock().unwrap();
        let (position, row) = (inputs.positions[0] as usize, inputs.last[0] as usize + 1);
        for state in states[0].iter_mut() {
            assert!(state.layout.room(shape.length).is_none_or(|room| room == state.slots.len()));
            state.check(&tokens, position);
            let fed = inputs.tokens[..row].iter().enumerate();
            fed.for_each(|(offset, &token)| state.add(position + offset, token as TokenId));
        }
        let best = vec![(0, 0.0); shape.output_rows()];
        let values = vec![vec![0.0; 256]; wanted.len()];
        Ok(StepOutputs { best, values, ..StepOutputs::default() })
    }
}

/// A session over states that are compared with the tokens of its one sequence.
struct Driver {
    executor: Recorder,
    session: Box<dyn InferenceSession>,
}

impl Driver {
    fn new(architecture: &str, lengths: &[usize]) -> Self {
        let options = GraphModelOptions {
            capacity: Some(400),
            chunks: vec![8],
            lengths: Some(Lengths::from_buckets(lengths).unwrap()),
            ..GraphModelOptions::default()
        };
        let executor = Recorder::default();
        let session = session_on(executor.clone(), &decoder_of(architecture), &options);
        assert!(!session.capabilities().rewind);
        Self { executor, session }
    }
}

#[test]
fn draft_tokens_can_be_dropped_behind_a_change_of_the_states_length() {
    for (architecture, lengths, prompt, drafts) in [
        ("qwen3_next", &[256, 512][..], 240, 20),
        // A window's ring that grows with the length, too.
        ("gemma3_text", &[48, 512], 30, 45),
        ("gemma3_text", &[64, 512], 30, 45),
    ] {
        for accepted in [0, 3, drafts - 1] {
            let mut driver = Driver::new(architecture, lengths);
            let sequence = driver.session.open().unwrap();
            let feed = |driver: &mut Driver, tokens: &[TokenId], drafts: usize| {
                driver.executor.tokens.lock().unwrap().extend_from_slice(tokens);
                let plan = SamplingPlan::greedy();
                let want = Want::token(&plan).with_drafts(drafts);
                driver.session.run_row(Row::new(sequence, tokens, want), &Control::default()).unwrap();
            };
            feed(&mut driver, &vec![1; prompt], 0);
            feed(&mut driver, &vec![2; 1 + drafts], drafts);
            let end = prompt + 1 + accepted;
            driver.session.rewind(sequence, end).unwrap();
            driver.executor.tokens.lock().unwrap().truncate(end);
            feed(&mut driver, &[3; 5], 0);
        }
    }
}
