//! The session: sequences with a cache each, advanced pass by pass.

mod rows;

use std::sync::Arc;

use super::adapters;
use super::language::Entry;
use super::model::{Cache, Shared};
use crate::capabilities::Capabilities;
use crate::error::{Error, ErrorKind, Result};
use crate::faults::FaultPoint;
use crate::identity::StateIdentity;
use crate::sequence::{SequenceId, SequenceOptions, SequenceState};
use crate::session::{InferenceSession, SessionStats};
use crate::snapshot::Snapshot;
use crate::step::{Control, Row, StepOutput};
use crate::table::{SequenceTable, StepRows};

/// The bytes of the payload of a snapshot of `tokens` tokens.
pub(super) fn payload_bytes(tokens: usize) -> u64 {
    (tokens * Entry::BYTES) as u64
}

pub(super) struct ReferenceSession {
    shared: Arc<Shared>,
    table: SequenceTable<Cache>,
    stats: SessionStats,
}

impl ReferenceSession {
    pub(super) fn new(shared: Arc<Shared>, capacity: usize) -> Self {
        let mut capabilities = shared.capabilities.clone();
        capabilities.context = capacity;
        let table = SequenceTable::new(capabilities, shared.language.vocabulary(), Cache::position);
        Self { shared, table, stats: SessionStats::default() }
    }

    /// Fails where a test told it to.
    fn check_fault(&self, point: FaultPoint, operation: &'static str) -> Result<()> {
        self.shared.faults.as_ref().map_or(Ok(()), |faults| faults.check(point, operation))
    }

    /// Runs one pass: the next chunk of each row in `pass`.
    fn run_pass(&mut self, pass: &[usize], rows: &mut StepRows<'_>) {
        std::thread::sleep(self.shared.delay);
        let points = [FaultPoint::Allocation, FaultPoint::Dispatch, FaultPoint::ReadBack];
        let failure = points.into_iter().find_map(|point| self.check_fault(point, "step").err());
        self.stats.passes += u64::from(failure.is_none());
        for &index in pass {
            let row = &mut rows[index];
            match &failure {
                Some(error) if error.kind() == ErrorKind::Device => {
                    self.table.fault(row, error.clone());
                }
                Some(error) => row.fail(error.clone()),
                None => {
                    let count = row.remaining().min(self.shared.capabilities.prompt_chunk);
                    let cache = self.table.get_mut("step", row.sequence());
                    let result = cache.and_then(|cache| rows::run(row, count, &self.shared, cache));
                    self.stats.tokens += count as u64;
                    self.table.absorb(row, count, result);
                }
            }
        }
    }
}

impl InferenceSession for ReferenceSession {
    fn capabilities(&self) -> &Capabilities {
        self.table.capabilities()
    }

    fn open(&mut self) -> Result<SequenceId> {
        self.open_with(&SequenceOptions::default())
    }

    fn open_with(&mut self, options: &SequenceOptions) -> Result<SequenceId> {
        let room = self.shared.adapters.as_ref();
        adapters::salt(room, options.adapter.as_ref(), "open sequence")?;
        self.table.open("open sequence", Cache::with_options(options))
    }

    fn close(&mut self, sequence: SequenceId) -> Result<()> {
        self.table.close(sequence).map(drop)
    }

    fn state(&self, sequence: SequenceId) -> Result<SequenceState> {
        self.table.state(sequence)
    }

    fn step(&mut self, rows: &[Row<'_>], control: &Control<'_>, out: &mut StepOutput) -> Result<()> {
        let mut rows = self.table.begin(rows, out)?;
        while rows.wait(control) {
            let waiting = rows.iter().enumerate().filter(|(_, row)| row.is_waiting());
            let pass: Vec<usize> =
                waiting.map(|(index, _)| index).take(self.table.capabilities().batch_rows).collect();
            if pass.is_empty() {
                break;
            }
            self.run_pass(&pass, &mut rows);
        }
        rows.finish(out);
        Ok(())
    }

    fn stats(&self) -> SessionStats {
        let memory = self.shared.memory;
        let bytes: usize = self.table.iter().map(|cache| memory.bytes(cache.position())).sum();
        let mut stats = self.stats;
        stats.kv_bytes = bytes as u64;
        stats
    }

    fn rewind(&mut self, sequence: SequenceId, position: usize) -> Result<()> {
        self.table.for_rewind(sequence, position)?.truncate(position);
        Ok(())
    }

    fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId> {
        let copy = self.table.for_fork(sequence)?.clone();
        self.check_fault(FaultPoint::Allocation, "fork")?;
        self.table.open("fork", copy)
    }

    fn snapshot(&mut self, sequence: SequenceId) -> Result<Snapshot> {
        let Cache { entries, options, .. } = self.table.for_snapshot(sequence)?;
        self.check_fault(FaultPoint::ReadBack, "snapshot")?;
        let payload: Vec<u8> = entries.iter().flat_map(|entry| entry.to_bytes()).collect();
        let identity = StateIdentity::of_sequence(&self.shared.info, options);
        Ok(Snapshot::new(identity, entries.len(), payload))
    }

    fn restore(&mut self, snapshot: &Snapshot) -> Result<SequenceId> {
        self.restore_with(snapshot, &SequenceOptions::default())
    }

    fn restore_with(&mut self, snapshot: &Snapshot, options: &SequenceOptions) -> Result<SequenceId> {
        let salt = adapters::salt(self.shared.adapters.as_ref(), options.adapter.as_ref(), "restore")?;
        self.table.check_restore(snapshot, &StateIdentity::of_sequence(&self.shared.info, options))?;
        let mut chunks = snapshot.payload().chunks_exact(Entry::BYTES);
        let cache: Vec<Entry> = chunks.by_ref().filter_map(Entry::from_bytes).collect();
        let language = &self.shared.language;
        let sound = (0..).zip(&cache).all(|(position, entry)| {
            (entry.token as usize) < language.vocabulary()
                && *entry == language.entry(entry.token, position, salt)
        });
        if !sound || cache.len() != snapshot.position() || !chunks.remainder().is_empty() {
            let message = "the payload is not a cache of this model";
            return Err(Error::new(ErrorKind::Corrupt, "restore", message)
                .with_context("bytes", snapshot.payload().len())
                .with_context("tokens", snapshot.position()));
        }
        self.check_fault(FaultPoint::Allocation, "restore")?;
        let mut held = Cache::with_options(options);
        cache.into_iter().for_each(|entry| held.push(entry));
        self.table.open("restore", held)
    }
}
