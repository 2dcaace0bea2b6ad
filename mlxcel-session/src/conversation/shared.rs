//! A session that several conversations share: branches of one are sequences of one session.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mlxcel_core::{
    Capabilities, Control, InferenceSession, Result, Row, SequenceId, SequenceOptions, SequenceState,
    SessionStats, Snapshot, StepOutput,
};

/// A session behind a lock, which is held for a step at a time.
#[derive(Clone)]
pub(super) struct SharedSession {
    session: Arc<Mutex<Box<dyn InferenceSession>>>,
    capabilities: Capabilities,
}

impl SharedSession {
    pub(super) fn new(session: Box<dyn InferenceSession>) -> Self {
        let capabilities = session.capabilities().clone();
        Self { session: Arc::new(Mutex::new(session)), capabilities }
    }

    /// The session; one that panicked is left as it is, and says by itself which sequences are usable.
    fn lock(&self) -> MutexGuard<'_, Box<dyn InferenceSession>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InferenceSession for SharedSession {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn open(&mut self) -> Result<SequenceId> {
        self.lock().open()
    }

    fn open_with(&mut self, options: &SequenceOptions) -> Result<SequenceId> {
        self.lock().open_with(options)
    }

    fn close(&mut self, sequence: SequenceId) -> Result<()> {
        self.lock().close(sequence)
    }

    fn state(&self, sequence: SequenceId) -> Result<SequenceState> {
        self.lock().state(sequence)
    }

    fn step(&mut self, rows: &[Row<'_>], control: &Control<'_>, out: &mut StepOutput) -> Result<()> {
        self.lock().step(rows, control, out)
    }

    fn stats(&self) -> SessionStats {
        self.lock().stats()
    }

    fn rewind(&mut self, sequence: SequenceId, position: usize) -> Result<()> {
        self.lock().rewind(sequence, position)
    }

    fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId> {
        self.lock().fork(sequence)
    }

    fn snapshot(&mut self, sequence: SequenceId) -> Result<Snapshot> {
        self.lock().snapshot(sequence)
    }

    fn restore(&mut self, snapshot: &Snapshot) -> Result<SequenceId> {
        self.lock().restore(snapshot)
    }

    fn restore_with(&mut self, snapshot: &Snapshot, options: &SequenceOptions) -> Result<SequenceId> {
        self.lock().restore_with(snapshot, options)
    }
}
