//! The session: where its sequences stand. Their caches are on the engine's thread.

use std::collections::BTreeMap;
use std::sync::Arc;

use mlxcel_core::{
    Capabilities, Control, Error, ErrorKind, InferenceSession, Result, Row, SequenceId, SequenceState,
    SessionStats, Snapshot, StepOutput, TokenId, check_rows,
};

use super::model::Shared;
use super::plan::{Feed, next_pass};
use super::request::{CacheId, PassRequest, RowRequest};
use super::rows::Work;
use super::snapshot;

/// Sequences of one model.
pub(super) struct MlxSession {
    shared: Arc<Shared>,
    capabilities: Capabilities,
    sequences: BTreeMap<SequenceId, Sequence>,
    opened: u64,
    stats: SessionStats,
}

/// One sequence.
struct Sequence {
    cache: CacheId,
    tokens: Vec<TokenId>,
    poisoned: bool,
    kv_bytes: u64,
}

impl MlxSession {
    pub(super) fn new(shared: Arc<Shared>, capacity: usize) -> Self {
        let mut capabilities = shared.capabilities.clone();
        capabilities.context = capacity;
        Self { shared, capabilities, sequences: BTreeMap::new(), opened: 0, stats: SessionStats::default() }
    }

    fn capacity(&self) -> usize {
        self.capabilities.context
    }

    fn sequence(&self, operation: &'static str, id: SequenceId) -> Result<&Sequence> {
        self.sequences.get(&id).ok_or_else(|| {
            Error::new(ErrorKind::NotFound, operation, "no such sequence is open")
                .with_context("sequence", id)
        })
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

    fn insert(&mut self, cache: CacheId, tokens: Vec<TokenId>, kv_bytes: u64) -> SequenceId {
        let id = SequenceId::new(self.opened);
        self.opened += 1;
        self.sequences.insert(id, Sequence { cache, tokens, poisoned: false, kv_bytes });
        id
    }

    /// Has the thread free a cache.
    fn forget(&self, cache: CacheId) {
        self.shared.worker.post(move |engine| engine.forget(cache));
    }

    /// Runs one pass; where that fails, its rows are answered with the error.
    fn run_pass(&mut self, pass: &[Feed], works: &mut [Work<'_>]) -> Result<()> {
        let mut rows = Vec::with_capacity(pass.len());
        for feed in pass {
            let work = &works[feed.row];
            let sequence = self.sequence("step", work.row.sequence)?;
            rows.push(RowRequest {
                cache: sequence.cache,
                position: sequence.tokens.len(),
                tokens: work.next(feed.tokens).to_vec(),
                capacity: self.capacity(),
                output: work.output(feed.tokens, &sequence.tokens),
            });
        }
        let request = PassRequest { rows };
        let reply = self.shared.worker.call("step", move |engine| Ok(engine.run(request)));
        // What became of the caches nobody knows where the thread cannot say.
        let (error, harmless) = match reply {
            Ok(Ok(reply)) => {
                self.stats.passes += 1;
                self.stats.uploaded_bytes += reply.uploaded_bytes;
                self.stats.read_back_bytes += reply.read_back_bytes;
                for (feed, row) in pass.iter().zip(reply.rows) {
                    self.stats.tokens += feed.tokens as u64;
                    let work = &mut works[feed.row];
                    if let Some(sequence) = self.sequences.get_mut(&work.row.sequence) {
                        sequence.tokens.extend_from_slice(work.next(feed.tokens));
                        sequence.kv_bytes = row.kv_bytes;
                    }
                    work.absorb(feed.tokens, row.answer);
                }
                return Ok(());
            }
            Ok(Err(failure)) => (failure.error, failure.harmless),
            Err(error) => (error, false),
        };
        if !harmless {
            for feed in pass {
                if let Some(sequence) = self.sequences.get_mut(&works[feed.row].row.sequence) {
                    sequence.poisoned = true;
                    sequence.kv_bytes = 0;
                    let cache = sequence.cache;
                    self.forget(cache);
                }
            }
        }
        Err(error)
    }
}

impl InferenceSession for MlxSession {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn open(&mut self) -> Result<SequenceId> {
        self.check_room("open sequence")?;
        let cache = self.shared.new_cache();
        Ok(self.insert(cache, Vec::new(), 0))
    }

    fn close(&mut self, sequence: SequenceId) -> Result<()> {
        let cache = self.sequence("close sequence", sequence)?.cache;
        self.sequences.remove(&sequence);
        self.forget(cache);
        Ok(())
    }

    fn state(&self, sequence: SequenceId) -> Result<SequenceState> {
        let found = self.sequence("read state", sequence)?;
        let mut state = SequenceState::new(found.tokens.len(), self.capacity());
        state.poisoned = found.poisoned;
        Ok(state)
    }

    fn step(&mut self, rows: &[Row<'_>], control: &Control<'_>, out: &mut StepOutput) -> Result<()> {
        out.clear();
        let vocabulary = self.shared.info.vocabulary_size;
        let checked = check_rows(rows, &self.capabilities, vocabulary, |sequence| self.state(sequence).ok())?;
        let mut works: Vec<Work<'_>> =
            rows.iter().zip(checked).map(|(row, checked)| Work::new(*row, checked)).collect();
        loop {
            let remaining: Vec<usize> = works.iter().map(Work::remaining).collect();
            let pass = next_pass(&remaining, self.shared.chunk, self.capabilities.batch_rows);
            if pass.is_empty() {
                break;
            }
            if let Err(error) = control.check("step") {
                let unanswered = works.iter_mut().filter(|work| work.answer.is_none());
                unanswered.for_each(|work| work.answer = Some(Err(error.clone())));
                break;
            }
            if let Err(error) = self.run_pass(&pass, &mut works) {
                pass.iter().for_each(|feed| works[feed.row].answer = Some(Err(error.clone())));
            }
        }
        for work in works {
            out.push(work.answer.unwrap_or_else(|| {
                Err(Error::new(ErrorKind::Internal, "step", "a row was left without an answer"))
            }));
        }
        Ok(())
    }

    fn stats(&self) -> SessionStats {
        let mut stats = self.stats;
        stats.kv_bytes = self.sequences.values().map(|sequence| sequence.kv_bytes).sum();
        stats
    }

    fn rewind(&mut self, sequence: SequenceId, position: usize) -> Result<()> {
        Capabilities::require(self.capabilities.rewind, "rewind", "rewind")?;
        let current = self.healthy("rewind", sequence)?.tokens.len();
        if position > current {
            return Err(Error::new(ErrorKind::InvalidInput, "rewind", "the sequence is shorter than that")
                .with_context("position", position)
                .with_context("tokens", current));
        }
        // What stands in the cache behind the position is not looked at, and written over.
        if let Some(found) = self.sequences.get_mut(&sequence) {
            found.tokens.truncate(position);
        }
        Ok(())
    }

    fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId> {
        let source = self.healthy("fork", sequence)?;
        self.check_room("fork")?;
        let (from, to) = (source.cache, self.shared.new_cache());
        let (tokens, kv_bytes) = (source.tokens.clone(), source.kv_bytes);
        self.shared.worker.call("fork", move |engine| engine.fork(from, to))?;
        Ok(self.insert(to, tokens, kv_bytes))
    }

    fn snapshot(&mut self, sequence: SequenceId) -> Result<Snapshot> {
        let source = self.healthy("snapshot", sequence)?;
        let (cache, tokens) = (source.cache, source.tokens.clone());
        let position = tokens.len();
        let kv = self.shared.worker.call("snapshot", move |engine| engine.read(cache, position))?;
        self.stats.read_back_bytes += kv.len() as u64;
        let payload = snapshot::encode(&tokens, kv);
        let model = self.shared.info.fingerprint.clone();
        Ok(Snapshot::new(self.shared.snapshot_engine.clone(), model, position, payload))
    }

    fn restore(&mut self, snapshot: &Snapshot) -> Result<SequenceId> {
        snapshot.check(&self.shared.snapshot_engine, &self.shared.info.fingerprint)?;
        self.check_room("restore")?;
        let position = snapshot.position();
        if position > self.capacity() {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "restore",
                "the snapshot is longer than this session's sequences may be",
            )
            .with_context("tokens", position)
            .with_context("capacity", self.capacity()));
        }
        let (tokens, kv) = snapshot::decode(snapshot, self.shared.info.vocabulary_size)?;
        let (cache, uploaded) = (self.shared.new_cache(), kv.len() as u64);
        let kv_bytes =
            self.shared.worker.call("restore", move |engine| engine.write(cache, position, &kv))?;
        self.stats.uploaded_bytes += uploaded;
        Ok(self.insert(cache, tokens, kv_bytes))
    }
}

impl Drop for MlxSession {
    fn drop(&mut self) {
        let caches: Vec<CacheId> = self.sequences.values().map(|sequence| sequence.cache).collect();
        self.shared.worker.post(move |engine| caches.into_iter().for_each(|cache| engine.forget(cache)));
    }
}
