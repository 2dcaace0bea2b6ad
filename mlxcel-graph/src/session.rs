//! The session of every engine that runs graphs.

mod pass;
mod payload;
mod rows;
mod sequence;

use std::collections::BTreeMap;
use std::sync::Arc;

use mlxcel_core::{
    Capabilities, Control, Error, ErrorKind, InferenceSession, Result, Row, SequenceId, SequenceState,
    SessionStats, Snapshot, StepOutput,
};

use crate::executor::Executor;
use crate::model::Shared;
use crate::numerics::KvCacheType;
use sequence::{Sequence, States};

/// An [`InferenceSession`] over the decoder programs of an [`Executor`].
pub struct GraphSession<E: Executor> {
    shared: Arc<Shared<E>>,
    capabilities: Capabilities,
    capacity: usize,
    sequences: BTreeMap<SequenceId, Sequence<E::State>>,
    opened: u64,
    stats: SessionStats,
}

impl<E: Executor> GraphSession<E> {
    pub(crate) fn new(shared: Arc<Shared<E>>, capacity: usize) -> Self {
        let mut capabilities = shared.capabilities.clone();
        capabilities.context = capacity;
        Self {
            shared,
            capabilities,
            capacity,
            sequences: BTreeMap::new(),
            opened: 0,
            stats: SessionStats::default(),
        }
    }

    fn sequence(&self, operation: &'static str, id: SequenceId) -> Result<&Sequence<E::State>> {
        self.sequences.get(&id).ok_or_else(|| no_sequence(operation, id))
    }

    /// A sequence that can still be used.
    fn healthy(&self, operation: &'static str, id: SequenceId) -> Result<&Sequence<E::State>> {
        let sequence = self.sequence(operation, id)?;
        if sequence.poisoned {
            return Err(Error::new(
                ErrorKind::Poisoned,
                operation,
                "a device fault left this sequence in an unknown state; close it",
            )
            .with_context("sequence", id));
        }
        Ok(sequence)
    }

    fn insert(&mut self, sequence: Sequence<E::State>) -> SequenceId {
        let id = SequenceId::new(self.opened);
        self.opened += 1;
        self.sequences.insert(id, sequence);
        id
    }

    fn check_room(&self, operation: &'static str) -> Result<()> {
        if self.sequences.len() < self.capabilities.sequences {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::CapacityExceeded,
            operation,
            "as many sequences are open as the session holds",
        )
        .with_context("sequences", self.capabilities.sequences))
    }

    /// The least length whose states have room for `positions`; there is one for every position within the capacity and its chunk.
    fn length_for(&self, operation: &'static str, positions: usize) -> Result<usize> {
        let Shared { lengths, bound, .. } = &*self.shared;
        lengths.holding(bound.map_or(positions, |bound| bound.min(positions))).ok_or_else(|| {
            Error::new(ErrorKind::Internal, operation, "no cache length has room for these positions")
                .with_context("positions", positions)
        })
    }

    /// What tags this session's snapshots: the engine, the payload's version, and what its bytes depend on.
    fn snapshot_engine(&self) -> String {
        let Shared { info, kv_cache, layouts, .. } = &*self.shared;
        let mut tag = format!("{} state/3 {}", info.backend, info.precision);
        if *kv_cache != KvCacheType::Precision {
            tag += &format!(" {kv_cache}");
        }
        for ring in layouts.iter().filter_map(|layout| layout.ring) {
            tag += &format!(" ring {ring}");
        }
        tag
    }
}

fn no_sequence(operation: &'static str, id: SequenceId) -> Error {
    Error::new(ErrorKind::NotFound, operation, "no such sequence is open").with_context("sequence", id)
}

impl<E: Executor> InferenceSession for GraphSession<E> {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn open(&mut self) -> Result<SequenceId> {
        self.check_room("open sequence")?;
        Ok(self.insert(Sequence::empty()))
    }

    fn close(&mut self, sequence: SequenceId) -> Result<()> {
        self.sequences.remove(&sequence).map(drop).ok_or_else(|| no_sequence("close sequence", sequence))
    }

    fn state(&self, sequence: SequenceId) -> Result<SequenceState> {
        let found = self.sequence("read state", sequence)?;
        let mut state = SequenceState::new(found.position, self.capacity);
        state.poisoned = found.poisoned;
        Ok(state)
    }

    fn step(&mut self, rows: &[Row<'_>], control: &Control<'_>, out: &mut StepOutput) -> Result<()> {
        self.run_step(rows, control, out)
    }

    fn stats(&self) -> SessionStats {
        let held = self.sequences.values().filter_map(|sequence| sequence.states.as_ref());
        let bytes = held.flat_map(|States { length, .. }| {
            self.shared.layouts.iter().map(|layout| layout.bytes(*length) as u64)
        });
        let mut stats = self.stats;
        stats.kv_bytes = bytes.sum();
        stats
    }

    fn rewind(&mut self, sequence: SequenceId, position: usize) -> Result<()> {
        Capabilities::require(self.capabilities.rewind, "rewind", "rewind")?;
        let current = self.healthy("rewind", sequence)?.position;
        if position > current {
            return Err(Error::new(ErrorKind::InvalidInput, "rewind", "the sequence is shorter than that")
                .with_context("position", position)
                .with_context("tokens", current));
        }
        if let Some(found) = self.sequences.get_mut(&sequence) {
            found.truncate(position);
        }
        Ok(())
    }

    fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId> {
        let source = self.healthy("fork", sequence)?;
        self.check_room("fork")?;
        let Sequence { position, computed, epoch, .. } = *source;
        let tokens = source.tokens.clone();
        let mut copy = Sequence { position, computed, tokens, epoch, ..Sequence::empty() };
        if computed > 0 {
            let length = self.length_for("fork", computed)?;
            copy.states = Some(self.shared.copied_states(source, length)?);
        }
        Ok(self.insert(copy))
    }

    fn snapshot(&mut self, sequence: SequenceId) -> Result<Snapshot> {
        let source = self.healthy("snapshot", sequence)?;
        let payload = self.shared.pack(source)?;
        let model = self.shared.info.fingerprint.clone();
        let (engine, position) = (self.snapshot_engine(), source.position);
        self.stats.read_back_bytes += payload.len() as u64;
        Ok(Snapshot::new(engine, model, position, payload))
    }

    fn restore(&mut self, snapshot: &Snapshot) -> Result<SequenceId> {
        snapshot.check(&self.snapshot_engine(), &self.shared.info.fingerprint)?;
        self.check_room("restore")?;
        let position = snapshot.position();
        if position > self.capacity {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "restore",
                "the snapshot is longer than this session's sequences may be",
            )
            .with_context("tokens", position)
            .with_context("capacity", self.capacity));
        }
        let length_for = |positions| self.length_for("restore", positions);
        let restored = self.shared.unpack(position, snapshot.payload(), length_for)?;
        self.stats.uploaded_bytes += snapshot.payload().len() as u64;
        Ok(self.insert(restored))
    }
}
