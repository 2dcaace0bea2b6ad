//! The session: sequences with a cache each, advanced pass by pass.

mod rows;

use std::collections::BTreeMap;
use std::sync::Arc;

use rows::Work;

use super::language::Entry;
use super::model::{Cache, Shared};
use super::{Fault, device_fault};
use crate::{
    Capabilities, Control, Error, ErrorKind, InferenceSession, Result, Row, SequenceId, SequenceState,
    SessionStats, Snapshot, StepOutput, check_rows,
};

/// What tags the snapshots: the engine and the version of their payload.
const SNAPSHOT_ENGINE: &str = "reference kv/1";

pub(super) struct ReferenceSession {
    shared: Arc<Shared>,
    capabilities: Capabilities,
    sequences: BTreeMap<SequenceId, Sequence>,
    opened: u64,
    /// Steps that came as far as a pass.
    steps: u64,
    /// Passes that were begun, the failed one included.
    begun: u64,
    stats: SessionStats,
}

/// One sequence: an entry for each of its tokens.
#[derive(Clone, Default)]
struct Sequence {
    cache: Cache,
    poisoned: bool,
}

impl ReferenceSession {
    pub(super) fn new(shared: Arc<Shared>, capacity: usize) -> Self {
        let mut capabilities = shared.capabilities.clone();
        capabilities.context = capacity;
        Self {
            shared,
            capabilities,
            sequences: BTreeMap::new(),
            opened: 0,
            steps: 0,
            begun: 0,
            stats: SessionStats::default(),
        }
    }

    fn sequence(&self, operation: &'static str, id: SequenceId) -> Result<&Sequence> {
        self.sequences.get(&id).ok_or_else(|| no_sequence(operation, id))
    }

    /// A sequence that can still be used.
    fn healthy(&self, operation: &'static str, id: SequenceId) -> Result<&Sequence> {
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

    fn insert(&mut self, sequence: Sequence) -> SequenceId {
        let id = SequenceId::new(self.opened);
        self.opened += 1;
        self.sequences.insert(id, sequence);
        id
    }

    /// Runs one pass: the next chunk of each row in `pass`.
    fn run_pass(&mut self, pass: &[usize], works: &mut [Work<'_>], first_of_step: bool) {
        std::thread::sleep(self.shared.delay);
        let (passes, steps) = (self.begun, self.steps);
        self.begun += 1;
        self.steps += u64::from(first_of_step);
        let failure = match self.shared.fault {
            Some(Fault::DeviceAfterSteps(n)) if first_of_step && n == steps => Some(device_fault("step")),
            Some(Fault::DeviceAfterPasses(n)) if n == passes => Some(device_fault("step")),
            Some(Fault::MemoryAfterPasses(n)) if n == passes => Some(Error::new(
                ErrorKind::ResourceExhausted,
                "step",
                "there is no memory for the cache, as it was told",
            )),
            _ => None,
        };
        if failure.is_none() {
            self.stats.passes += 1;
        }
        for &index in pass {
            let work = &mut works[index];
            let Some(sequence) = self.sequences.get_mut(&work.row.sequence) else { continue };
            match &failure {
                Some(error) => {
                    sequence.poisoned = error.kind() == ErrorKind::Device;
                    work.answer = Some(Err(error.clone()));
                }
                None => {
                    let tokens = work.run(&self.shared, &mut sequence.cache);
                    self.stats.tokens += tokens as u64;
                    let failure = work.answer.as_ref().and_then(|answer| answer.as_ref().err());
                    sequence.poisoned = failure.is_some_and(|error| error.kind() == ErrorKind::Device);
                }
            }
        }
    }
}

fn no_sequence(operation: &'static str, id: SequenceId) -> Error {
    Error::new(ErrorKind::NotFound, operation, "no such sequence is open").with_context("sequence", id)
}

impl InferenceSession for ReferenceSession {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn open(&mut self) -> Result<SequenceId> {
        self.check_room("open sequence")?;
        Ok(self.insert(Sequence::default()))
    }

    fn close(&mut self, sequence: SequenceId) -> Result<()> {
        self.sequences.remove(&sequence).map(drop).ok_or_else(|| no_sequence("close sequence", sequence))
    }

    fn state(&self, sequence: SequenceId) -> Result<SequenceState> {
        let found = self.sequence("read state", sequence)?;
        let mut state = SequenceState::new(found.cache.entries.len(), self.capabilities.context);
        state.poisoned = found.poisoned;
        Ok(state)
    }

    fn step(&mut self, rows: &[Row<'_>], control: &Control<'_>, out: &mut StepOutput) -> Result<()> {
        out.clear();
        let vocabulary = self.shared.language.vocabulary();
        let checked = check_rows(rows, &self.capabilities, vocabulary, |sequence| self.state(sequence).ok())?;
        let mut works: Vec<Work<'_>> =
            rows.iter().zip(checked).map(|(row, checked)| Work::new(*row, checked)).collect();
        let mut first = true;
        loop {
            let waiting = (0..works.len()).filter(|&i| works[i].answer.is_none());
            let pass: Vec<usize> = waiting.take(self.capabilities.batch_rows).collect();
            if pass.is_empty() {
                break;
            }
            if let Err(error) = control.check("step") {
                let unanswered = works.iter_mut().filter(|work| work.answer.is_none());
                unanswered.for_each(|work| work.answer = Some(Err(error.clone())));
                break;
            }
            self.run_pass(&pass, &mut works, first);
            first = false;
        }
        for work in works {
            out.push(work.answer.unwrap_or_else(|| {
                Err(Error::new(ErrorKind::Internal, "step", "a row was left without an answer"))
            }));
        }
        Ok(())
    }

    fn stats(&self) -> SessionStats {
        let memory = self.shared.memory;
        let bytes: usize =
            self.sequences.values().map(|sequence| memory.bytes(sequence.cache.entries.len())).sum();
        let mut stats = self.stats;
        stats.kv_bytes = bytes as u64;
        stats
    }

    fn rewind(&mut self, sequence: SequenceId, position: usize) -> Result<()> {
        Capabilities::require(self.capabilities.rewind, "rewind", "rewind")?;
        let current = self.healthy("rewind", sequence)?.cache.entries.len();
        if position > current {
            return Err(Error::new(ErrorKind::InvalidInput, "rewind", "the sequence is shorter than that")
                .with_context("position", position)
                .with_context("tokens", current));
        }
        if let Some(found) = self.sequences.get_mut(&sequence) {
            found.cache.truncate(position);
        }
        Ok(())
    }

    fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId> {
        Capabilities::require(self.capabilities.fork, "fork", "fork")?;
        let copy = self.healthy("fork", sequence)?.clone();
        self.check_room("fork")?;
        Ok(self.insert(copy))
    }

    fn snapshot(&mut self, sequence: SequenceId) -> Result<Snapshot> {
        Capabilities::require(self.capabilities.snapshot, "snapshot", "snapshot")?;
        let cache = &self.healthy("snapshot", sequence)?.cache.entries;
        let payload: Vec<u8> = cache.iter().flat_map(|entry| entry.to_bytes()).collect();
        Ok(Snapshot::new(SNAPSHOT_ENGINE, &self.shared.info.fingerprint, cache.len(), payload))
    }

    fn restore(&mut self, snapshot: &Snapshot) -> Result<SequenceId> {
        Capabilities::require(self.capabilities.snapshot, "restore", "snapshot")?;
        snapshot.check(SNAPSHOT_ENGINE, &self.shared.info.fingerprint)?;
        self.check_room("restore")?;
        let (position, capacity) = (snapshot.position(), self.capabilities.context);
        if position > capacity {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "restore",
                "the snapshot is longer than this session's sequences may be",
            )
            .with_context("tokens", position)
            .with_context("capacity", capacity));
        }
        let mut chunks = snapshot.payload().chunks_exact(Entry::BYTES);
        let cache: Vec<Entry> = chunks.by_ref().filter_map(Entry::from_bytes).collect();
        let language = &self.shared.language;
        let sound = (0..).zip(&cache).all(|(position, entry)| {
            (entry.token as usize) < language.vocabulary() && *entry == language.entry(entry.token, position)
        });
        if !sound || cache.len() != position || !chunks.remainder().is_empty() {
            return Err(Error::new(
                ErrorKind::Corrupt,
                "restore",
                "the payload is not a cache of this model",
            )
            .with_context("bytes", snapshot.payload().len())
            .with_context("tokens", position));
        }
        let mut held = Cache::default();
        cache.into_iter().for_each(|entry| held.push(entry));
        Ok(self.insert(Sequence { cache: held, poisoned: false }))
    }
}
