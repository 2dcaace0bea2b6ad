//! The session of every engine that runs graphs.

mod ahead;
mod pass;
pub(crate) mod payload;
mod rows;
mod sequence;

#[cfg(test)]
mod draft_tests;
#[cfg(test)]
mod ready_tests;

use std::sync::Arc;

use mlxcel_core::{
    Capabilities, Control, InferenceSession, Result, Row, SequenceId, SequenceOptions, SequenceState,
    SequenceTable, SessionStats, Snapshot, StateIdentity, StepOutput,
};

use crate::adapters;
use crate::executor::Executor;
use crate::shared::Shared;
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
        self.open_with(&SequenceOptions::default())
    }

    fn open_with(&mut self, options: &SequenceOptions) -> Result<SequenceId> {
        adapters::check(self.shared.adapters.as_ref(), options, "open sequence")?;
        self.table.open("open sequence", Sequence::with_options(options))
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
        let held = self.table.iter().filter_map(|sequence| Some((sequence.states.as_ref()?, &sequence.kept)));
        let Shared { executor, layouts, .. } = &*self.shared;
        let bytes = held.flat_map(|(States { length, written, .. }, kept)| {
            let bytes = |layout| executor.state_bytes(layout, *length, *written) as u64;
            let groups = kept.iter().flat_map(|kept| layouts.iter().zip(&kept.groups));
            let copied = groups.filter_map(|(layout, copy)| copy.as_ref().and(Some(layout)));
            layouts.iter().chain(copied).map(bytes)
        });
        let mut stats = self.stats;
        stats.kv_bytes = bytes.sum();
        stats
    }

    fn rewind(&mut self, sequence: SequenceId, position: usize) -> Result<()> {
        self.table.for_rewind(sequence, position)?.truncate(position)
    }

    fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId> {
        let source = self.table.for_fork(sequence)?;
        let Sequence { position, computed, remembered, epoch, .. } = *source;
        let (tokens, options) = (source.tokens.clone(), source.options.clone());
        let mut copy =
            Sequence { position, computed, tokens, remembered, epoch, options, states: None, kept: None };
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
        let identity = StateIdentity::of_sequence(&self.shared.info, &source.options);
        self.stats.read_back_bytes += payload.len() as u64;
        Ok(Snapshot::new(identity, position, payload))
    }

    fn restore(&mut self, snapshot: &Snapshot) -> Result<SequenceId> {
        self.restore_with(snapshot, &SequenceOptions::default())
    }

    fn restore_with(&mut self, snapshot: &Snapshot, options: &SequenceOptions) -> Result<SequenceId> {
        adapters::check(self.shared.adapters.as_ref(), options, "restore")?;
        let identity = StateIdentity::of_sequence(&self.shared.info, options);
        self.table.check_restore(snapshot, &identity)?;
        let length_for = |positions| self.shared.length_for("restore", positions);
        let restored = self.shared.unpack(snapshot.position(), snapshot.payload(), length_for)?;
        let restored = Sequence { options: options.clone(), ..restored };
        self.stats.uploaded_bytes += snapshot.payload().len() as u64;
        self.table.open("restore", restored)
    }
}
