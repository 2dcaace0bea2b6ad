//! The session: where its sequences stand. Their caches are on the engine's thread.

use std::collections::BTreeMap;
use std::sync::Arc;

use mlxcel_core::{
    Capabilities, Control, Error, ErrorKind, InferenceSession, Result, Row, SequenceId, SequenceState,
    SessionStats, Snapshot, StepOutput, TokenId, Want, check_rows,
};

use super::model::Shared;
use super::plan::{Feed, next_pass};
use super::request::{CacheId, Output, PassRequest, RowAnswer, RowRequest};
use super::rows::Work;
use super::snapshot::{self, Contents};

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
    /// How many of them the cache holds: all, but for where they are to be computed again because the epoch changes.
    cached: usize,
    /// Of which epoch what the cache holds is; see [`RopeEpochs`](mlxcel_models::RopeEpochs).
    epoch: usize,
    poisoned: bool,
    kv_bytes: u64,
}

/// What a row feeds next.
struct Outlook {
    /// The epoch in which it runs.
    epoch: usize,
    /// How many of the sequence's tokens the cache holds of that epoch.
    start: usize,
    /// How many tokens the sequence has.
    position: usize,
    /// How many it has where the epoch ends or the row does.
    length: usize,
}

impl Outlook {
    /// Whether tokens of the sequence are to be computed again before those of the row.
    fn is_behind(&self) -> bool {
        self.start < self.position
    }
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

    fn insert(&mut self, sequence: Sequence) -> SequenceId {
        let id = SequenceId::new(self.opened);
        self.opened += 1;
        self.sequences.insert(id, sequence);
        id
    }

    /// What a row feeds next.
    fn outlook(&self, work: &Work<'_>) -> Result<Outlook> {
        let sequence = self.sequence("step", work.row.sequence)?;
        let position = sequence.tokens.len();
        let mut length = position + work.remaining();
        if matches!(work.row.want, Want::EveryPosition { .. }) {
            // What a position says depends on those before it alone: it is of the epoch that ends with it.
            let end = self.shared.epochs.end_after(position);
            length = end.map_or(length, |end| length.min(end));
        }
        let epoch = self.shared.epochs.at(length);
        let start = if epoch == sequence.epoch { sequence.cached } else { 0 };
        Ok(Outlook { epoch, start, position, length })
    }

    /// How many tokens a row feeds before its answer, or before it goes on with others.
    fn remaining(&self, work: &Work<'_>) -> usize {
        match self.outlook(work) {
            Ok(outlook) if work.remaining() > 0 && outlook.is_behind() => outlook.position - outlook.start,
            Ok(outlook) => outlook.length - outlook.position,
            Err(_) => 0,
        }
    }

    /// Gives up a sequence.
    fn poison(&mut self, sequence: SequenceId) {
        if let Some(sequence) = self.sequences.get_mut(&sequence) {
            sequence.poisoned = true;
            sequence.kv_bytes = 0;
            let cache = sequence.cache;
            self.forget(cache);
        }
    }

    /// Has the thread free a cache.
    fn forget(&self, cache: CacheId) {
        self.shared.worker.post(move |engine| engine.forget(cache));
    }

    /// Runs one pass; where that fails, its rows are answered with the error.
    fn run_pass(&mut self, pass: &[Feed], works: &mut [Work<'_>]) -> Result<()> {
        let mut rows = Vec::with_capacity(pass.len());
        let mut outlooks = Vec::with_capacity(pass.len());
        for feed in pass {
            let work = &works[feed.row];
            let sequence = self.sequence("step", work.row.sequence)?;
            let outlook = self.outlook(work)?;
            let (tokens, output) = match outlook.is_behind() {
                true => (&sequence.tokens[outlook.start..outlook.start + feed.tokens], Output::Nothing),
                false => (work.next(feed.tokens), work.output(feed.tokens, &sequence.tokens)),
            };
            rows.push(RowRequest {
                cache: sequence.cache,
                position: outlook.start,
                length: outlook.length,
                tokens: tokens.to_vec(),
                capacity: self.capacity(),
                output,
            });
            outlooks.push(outlook);
        }
        let request = PassRequest { rows };
        let reply = self.shared.worker.call("step", move |engine| Ok(engine.run(request)));
        // What became of the caches nobody knows where the thread cannot say.
        let (error, harmless) = match reply {
            Ok(Ok(reply)) => {
                self.stats.passes += 1;
                self.stats.uploaded_bytes += reply.uploaded_bytes;
                self.stats.read_back_bytes += reply.read_back_bytes;
                for ((feed, outlook), row) in pass.iter().zip(outlooks).zip(reply.rows) {
                    let work = &mut works[feed.row];
                    if let Some(sequence) = self.sequences.get_mut(&work.row.sequence) {
                        if !outlook.is_behind() {
                            sequence.tokens.extend_from_slice(work.next(feed.tokens));
                            self.stats.tokens += feed.tokens as u64;
                        }
                        sequence.cached = outlook.start + feed.tokens;
                        sequence.epoch = outlook.epoch;
                        sequence.kv_bytes = row.kv_bytes;
                    }
                    match row.answer {
                        Ok(RowAnswer::Nothing) if outlook.is_behind() => {}
                        Ok(answer) => work.absorb(feed.tokens, answer),
                        Err(error) => {
                            work.answer = Some(Err(error));
                            let sequence = work.row.sequence;
                            self.poison(sequence);
                        }
                    }
                }
                return Ok(());
            }
            Ok(Err(failure)) => (failure.error, failure.harmless),
            Err(error) => (error, false),
        };
        if !harmless {
            pass.iter().for_each(|feed| self.poison(works[feed.row].row.sequence));
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
        Ok(self.insert(Sequence {
            cache,
            tokens: Vec::new(),
            cached: 0,
            epoch: 0,
            poisoned: false,
            kv_bytes: 0,
        }))
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
            let remaining: Vec<usize> = works.iter().map(|work| self.remaining(work)).collect();
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
            found.cached = found.cached.min(position);
        }
        Ok(())
    }

    fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId> {
        let source = self.healthy("fork", sequence)?;
        self.check_room("fork")?;
        let (from, to) = (source.cache, self.shared.new_cache());
        let copy = Sequence { cache: to, tokens: source.tokens.clone(), ..*source };
        self.shared.worker.call("fork", move |engine| engine.fork(from, to))?;
        Ok(self.insert(copy))
    }

    fn snapshot(&mut self, sequence: SequenceId) -> Result<Snapshot> {
        let source = self.healthy("snapshot", sequence)?;
        let (cache, cached, epoch) = (source.cache, source.cached, source.epoch);
        let (tokens, position) = (source.tokens.clone(), source.tokens.len());
        let states = self.shared.worker.call("snapshot", move |engine| engine.read(cache, cached))?;
        self.stats.read_back_bytes += states.len() as u64;
        let payload = Contents { tokens, cached, epoch, states }.encode();
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
        let contents =
            snapshot::decode(snapshot, self.shared.info.vocabulary_size, self.shared.epochs.count() - 1)?;
        let Contents { tokens, cached, epoch, states } = contents;
        let (cache, uploaded) = (self.shared.new_cache(), states.len() as u64);
        let kv_bytes =
            self.shared.worker.call("restore", move |engine| engine.write(cache, cached, &states))?;
        self.stats.uploaded_bytes += uploaded;
        Ok(self.insert(Sequence { cache, tokens, cached, epoch, poisoned: false, kv_bytes }))
    }
}

impl Drop for MlxSession {
    fn drop(&mut self) {
        let caches: Vec<CacheId> = self.sequences.values().map(|sequence| sequence.cache).collect();
        self.shared.worker.post(move |engine| caches.into_iter().for_each(|cache| engine.forget(cache)));
    }
}
