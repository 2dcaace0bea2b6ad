//! The session of every engine that runs graphs.

mod pass;
mod rows;

use std::collections::BTreeMap;
use std::sync::Arc;

use mlxcel_core::{
    Capabilities, Control, Error, ErrorKind, InferenceSession, Result, Row, SequenceId, SequenceState,
    SessionStats, Snapshot, StepOutput,
};

use crate::executor::Executor;
use crate::model::Shared;
use crate::numerics::KvCacheType;

/// An [`InferenceSession`] over the decoder programs of an [`Executor`].
pub struct GraphSession<E: Executor> {
    shared: Arc<Shared<E>>,
    capabilities: Capabilities,
    capacity: usize,
    sequences: BTreeMap<SequenceId, Sequence<E::Cache>>,
    opened: u64,
    stats: SessionStats,
}

/// One sequence: how far it is, and its cache.
struct Sequence<C> {
    position: usize,
    poisoned: bool,
    /// None until the first token.
    cache: Option<SizedCache<C>>,
}

/// A cache and how many positions it has room for.
struct SizedCache<C> {
    cache: C,
    length: usize,
}

impl<C> Sequence<C> {
    fn empty() -> Self {
        Self { position: 0, poisoned: false, cache: None }
    }
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

    fn sequence(&self, operation: &'static str, id: SequenceId) -> Result<&Sequence<E::Cache>> {
        self.sequences.get(&id).ok_or_else(|| no_sequence(operation, id))
    }

    /// A sequence that can still be used.
    fn healthy(&self, operation: &'static str, id: SequenceId) -> Result<&Sequence<E::Cache>> {
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

    fn insert(&mut self, sequence: Sequence<E::Cache>) -> SequenceId {
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

    /// The least length with room for `positions`; there is one for every position within the capacity and its chunk.
    fn length_for(&self, operation: &'static str, positions: usize) -> Result<usize> {
        self.shared.lengths.holding(positions).ok_or_else(|| {
            Error::new(ErrorKind::Internal, operation, "no cache length has room for these positions")
                .with_context("positions", positions)
        })
    }

    /// What tags this session's snapshots: the engine, the layout's version, and what the cache's bytes depend on.
    fn snapshot_engine(&self) -> String {
        let kept = match self.shared.kv_cache {
            KvCacheType::Precision => String::new(),
            other => format!(" {other}"),
        };
        format!("{} kv/1 {}{kept}", self.shared.info.backend, self.shared.info.precision)
    }
}

impl<E: Executor> Shared<E> {
    /// A new cache with room for `length` positions that holds what `sequence` holds.
    fn copied_cache(&self, sequence: &Sequence<E::Cache>, length: usize) -> Result<SizedCache<E::Cache>> {
        let mut cache = self.executor.allocate(&self.layout, length)?;
        if let Some(from) = &sequence.cache {
            self.executor.copy(
                &self.layout,
                (&from.cache, from.length),
                (&mut cache, length),
                sequence.position,
            )?;
        }
        Ok(SizedCache { cache, length })
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
        let caches = self.sequences.values().filter_map(|sequence| sequence.cache.as_ref());
        let mut stats = self.stats;
        stats.kv_bytes = caches.map(|cache| self.shared.layout.bytes(cache.length) as u64).sum();
        stats
    }

    fn rewind(&mut self, sequence: SequenceId, position: usize) -> Result<()> {
        let current = self.healthy("rewind", sequence)?.position;
        if position > current {
            return Err(Error::new(ErrorKind::InvalidInput, "rewind", "the sequence is shorter than that")
                .with_context("position", position)
                .with_context("tokens", current));
        }
        // What stands behind the position is masked until it is overwritten.
        if let Some(found) = self.sequences.get_mut(&sequence) {
            found.position = position;
        }
        Ok(())
    }

    fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId> {
        let source = self.healthy("fork", sequence)?;
        self.check_room("fork")?;
        let mut copy = Sequence { position: source.position, ..Sequence::empty() };
        if source.position > 0 {
            let length = self.length_for("fork", source.position)?;
            copy.cache = Some(self.shared.copied_cache(source, length)?);
        }
        Ok(self.insert(copy))
    }

    fn snapshot(&mut self, sequence: SequenceId) -> Result<Snapshot> {
        let source = self.healthy("snapshot", sequence)?;
        let payload = match &source.cache {
            Some(SizedCache { cache, length }) => {
                self.shared.executor.read(&self.shared.layout, cache, *length, source.position)?
            }
            None => Vec::new(),
        };
        let model = self.shared.info.fingerprint.clone();
        let (engine, position) = (self.snapshot_engine(), source.position);
        self.stats.read_back_bytes += payload.len() as u64;
        Ok(Snapshot::new(engine, model, position, payload))
    }

    fn restore(&mut self, snapshot: &Snapshot) -> Result<SequenceId> {
        snapshot.check(&self.snapshot_engine(), &self.shared.info.fingerprint)?;
        self.check_room("restore")?;
        let Shared { executor, layout, .. } = &*self.shared;
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
        if snapshot.payload().len() != layout.bytes(position) {
            return Err(Error::new(
                ErrorKind::Corrupt,
                "restore",
                "the snapshot's payload has the wrong size",
            )
            .with_context("bytes", snapshot.payload().len())
            .with_context("expected", layout.bytes(position)));
        }
        let mut restored = Sequence { position, ..Sequence::empty() };
        if position > 0 {
            let length = self.length_for("restore", position)?;
            let mut cache = executor.allocate(layout, length)?;
            executor.write(layout, &mut cache, length, position, snapshot.payload())?;
            restored.cache = Some(SizedCache { cache, length });
        }
        self.stats.uploaded_bytes += snapshot.payload().len() as u64;
        Ok(self.insert(restored))
    }
}
