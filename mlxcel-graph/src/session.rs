//! The session of every engine that runs graphs.

mod ahead;
mod pass;
pub(crate) mod payload;
mod rows;
mod sequence;

use std::sync::Arc;

use mlxcel_core::{
    Capabilities, Control, InferenceSession, Result, Row, SequenceId, SequenceState, SequenceTable,
    SessionStats, Snapshot, StateIdentity, StepOutput,
};

use crate::executor::Executor;
use crate::model::Shared;
use sequence::{Sequence, States};

/// An [`InferenceSession`] over the decoder programs of an [`Executor`].
pub struct GraphSession<E: Executor> {
    shared: Arc<Shared<E>>,
    table: SequenceTable<Sequence<E::State>>,
    stats: SessionStats,
}

impl<E: Executor> GraphSession<E> {
    pub(crate) fn new(shared: Arc<Shared<E>>, capacity: usize) -> Self {
        let mut capabilities = shared.capabilities.clone();
        capabilities.context = capacity;
        let table = SequenceTable::new(capabilities, shared.info.vocabulary_size, Sequence::position);
        Self { shared, table, stats: SessionStats::default() }
    }
}

impl<E: Executor> InferenceSession for GraphSession<E> {
    fn capabilities(&self) -> &Capabilities {
        self.table.capabilities()
    }

    fn open(&mut self) -> Result<SequenceId> {
        self.table.open("open sequence", Sequence::empty())
    }

    fn close(&mut self, sequence: SequenceId) -> Result<()> {
        self.table.close(sequence).map(drop)
    }

    fn state(&self, sequence: SequenceId) -> Result<SequenceState> {
        self.table.state(sequence)
    }

    fn step(&mut self, rows: &[Row<'_>], control: &Control<'_>, out: &mut StepOutput) -> Result<()> {
        self.run_step(rows, control, out)
    }

    fn stats(&self) -> SessionStats {
        let held = self.table.iter().filter_map(|sequence| sequence.states.as_ref());
        let Shared { executor, layouts, .. } = &*self.shared;
        let bytes = held.flat_map(|States { length, written, .. }| {
            layouts.iter().map(|layout| executor.state_bytes(layout, *length, *written) as u64)
        });
        let mut stats = self.stats;
        stats.kv_bytes = bytes.sum();
        stats
    }

    fn rewind(&mut self, sequence: SequenceId, position: usize) -> Result<()> {
        self.table.for_rewind(sequence, position)?.truncate(position);
        Ok(())
    }

    fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId> {
        let source = self.table.for_fork(sequence)?;
        let Sequence { position, computed, epoch, .. } = *source;
        let tokens = source.tokens.clone();
        let mut copy = Sequence { position, computed, tokens, epoch, ..Sequence::empty() };
        if computed > 0 {
            let length = self.shared.length_for("fork", computed)?;
            copy.states = Some(self.shared.copied_states(source, length)?);
        }
        self.table.open("fork", copy)
    }

    fn snapshot(&mut self, sequence: SequenceId) -> Result<Snapshot> {
        let source = self.table.for_snapshot(sequence)?;
        let payload = self.shared.pack(source)?;
        let position = source.position;
        self.stats.read_back_bytes += payload.len() as u64;
        Ok(Snapshot::new(StateIdentity::of(&self.shared.info), position, payload))
    }

    fn restore(&mut self, snapshot: &Snapshot) -> Result<SequenceId> {
        self.table.check_restore(snapshot, &StateIdentity::of(&self.shared.info))?;
        let length_for = |positions| self.shared.length_for("restore", positions);
        let restored = self.shared.unpack(snapshot.position(), snapshot.payload(), length_for)?;
        self.stats.uploaded_bytes += snapshot.payload().len() as u64;
        self.table.open("restore", restored)
    }
}
