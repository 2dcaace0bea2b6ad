//! A model whose sessions panic at a step.

use std::sync::Arc;

use mlxcel_core::{
    Capabilities, Control, InferenceSession, Model, ModelInfo, Result, Row, SequenceId, SequenceState,
    SessionOptions, SessionStats, StepOutput,
};

pub(super) struct Panicking {
    inner: Arc<dyn Model>,
    step: usize,
}

impl Panicking {
    pub(super) fn at_step(model: &crate::model::Model, step: usize) -> Arc<dyn Model> {
        Arc::new(Self { inner: Arc::clone(model.engine()), step })
    }
}

impl Model for Panicking {
    fn info(&self) -> &ModelInfo {
        self.inner.info()
    }
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }
    fn open_session(&self, options: &SessionOptions) -> Result<Box<dyn InferenceSession>> {
        Ok(Box::new(Session { inner: self.inner.open_session(options)?, left: self.step }))
    }
}

struct Session {
    inner: Box<dyn InferenceSession>,
    left: usize,
}

impl InferenceSession for Session {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }
    fn open(&mut self) -> Result<SequenceId> {
        self.inner.open()
    }
    fn close(&mut self, sequence: SequenceId) -> Result<()> {
        self.inner.close(sequence)
    }
    fn state(&self, sequence: SequenceId) -> Result<SequenceState> {
        self.inner.state(sequence)
    }
    fn step(&mut self, rows: &[Row<'_>], control: &Control<'_>, out: &mut StepOutput) -> Result<()> {
        if self.left == 0 {
            // Without the hook, in which shuttle prints the schedule of what it takes for a failure.
            std::panic::resume_unwind(Box::new("the session panics, as it was told to"));
        }
        self.left -= 1;
        self.inner.step(rows, control, out)
    }
    fn stats(&self) -> SessionStats {
        self.inner.stats()
    }
}
