//! The session: the positions of its sequences. Their caches live on the engine's thread.

use std::sync::Arc;

use mlxcel_core::{
    Capabilities, Control, Error, InferenceSession, Result, Row, RowResult, SequenceId, SequenceOptions,
    SequenceState, SequenceTable, SessionStats, Snapshot, StateIdentity, StepOutput, TokenId,
};
use mlxcel_models::{FedRow, FedRows, Feed, Held};

use super::adapters;
use super::model::Shared;
use super::plan::{PassRow, next_pass, whole_rows};
use super::request::{CacheId, Earlier, PassRequest, RowReply, RowRequest};
use super::rows::output;
use super::snapshot::{self, Contents};

/// Sequences of one model.
pub(super) struct MlxSession {
    shared: Arc<Shared>,
    table: SequenceTable<Sequence>,
    stats: SessionStats,
}

/// One sequence.
struct Sequence {
    cache: CacheId,
    tokens: Vec<TokenId>,
    /// How many of them are in the cache: all, unless some must be recomputed because the epoch changes.
    cached: usize,
    /// How many were in the cache before the draft tokens of the last row, where the model keeps that.
    kept: usize,
    /// The epoch of the cache's content; see [`RopeEpochs`](mlxcel_models::RopeEpochs).
    epoch: usize,
    kv_bytes: u64,
    /// What it was opened with: the adapter, which stays loaded as long as the sequence is open.
    options: SequenceOptions,
}

impl Sequence {
    fn position(&self) -> usize {
        self.tokens.len()
    }

    fn held(&self) -> Held {
        Held { position: self.position(), computed: self.cached, epoch: self.epoch }
    }
}

impl MlxSession {
    pub(super) fn new(shared: Arc<Shared>, capacity: usize) -> Self {
        let mut capabilities = shared.capabilities.clone();
        capabilities.context = capacity;
        let table = SequenceTable::new(capabilities, shared.info.vocabulary_size, Sequence::position);
        Self { shared, table, stats: SessionStats::default() }
    }

    /// What becomes of the states from before a pass over the next `tokens` of `row`.
    fn earlier(&self, row: &FedRow<'_>, sequence: &Sequence, tokens: usize) -> Earlier {
        let start = row.progress.recompute.start;
        let position = sequence.position();
        match row.first_draft(position).filter(|_| !self.table.capabilities().rewind) {
            Some(first) if first < start => Earlier::Leave,
            Some(first) if first < start + tokens => Earlier::Keep { end: position + row.remaining() },
            _ => Earlier::Drop,
        }
    }

    /// Plans the next feed of a row.
    fn begin_feed(&self, row: &mut FedRow<'_>) -> Result<()> {
        let sequence = self.table.get("step", row.sequence())?;
        row.progress = Feed::next(row, sequence.held(), &self.shared.epochs);
        Ok(())
    }

    /// Has the thread free the cache of a closed sequence.
    fn free(&self, sequence: Option<Sequence>) {
        if let Some(Sequence { cache, .. }) = sequence {
            self.shared.worker.post(move |engine| engine.forget(cache));
        }
    }

    /// Poisons a sequence whose cache was lost.
    fn poison_if_lost<T>(&mut self, sequence: SequenceId, cache: CacheId, result: &Result<T>) {
        let ask = || self.shared.worker.call("read state", move |engine| Ok(engine.has_lost(cache)));
        if result.is_err() && ask().unwrap_or(true) {
            let lost = self.table.poison(sequence);
            self.free(lost);
        }
    }

    /// Runs one pass; if it fails, its rows return the error.
    fn run_pass(&mut self, pass: &[PassRow], rows: &mut FedRows<'_>) -> Result<()> {
        let mut requests = Vec::with_capacity(pass.len());
        for &PassRow { row, tokens } in pass {
            let row = &rows[row];
            let sequence = self.table.get("step", row.sequence())?;
            let earlier = self.earlier(row, sequence, tokens);
            let feed = &row.progress;
            let own = feed.new_within(tokens);
            let again = sequence.tokens.get(feed.recomputed_within(tokens)).unwrap_or_default();
            requests.push(RowRequest {
                cache: sequence.cache,
                position: feed.recompute.start,
                length: feed.length,
                tokens: [again, row.next(own)].concat(),
                // Sequences whose tokens have types are never computed again.
                types: row.next_types(own).to_vec(),
                // Nor are those of draft heads.
                input_states: row.next_states(own).to_vec(),
                capacity: self.table.capabilities().context,
                adapter: adapters::slot(self.shared.adapters.as_ref(), &sequence.options, "step")?,
                earlier,
                output: output(row, own, &sequence.tokens),
                output_states: if row.want().states { own } else { 0 },
            });
            if let Earlier::Keep { .. } = earlier {
                let position = feed.recompute.start;
                self.table.get_mut("step", row.sequence())?.kept = position;
            }
        }
        let request = PassRequest { rows: requests };
        let reply = self.shared.worker.call("step", move |engine| Ok(engine.run(request)));
        // The state of the caches is unknown if the thread does not answer.
        let (error, harmless) = match reply {
            Ok(Ok(reply)) => {
                self.stats.passes += 1;
                self.stats.uploaded_bytes += reply.uploaded_bytes;
                self.stats.read_back_bytes += reply.read_back_bytes;
                for (&PassRow { row, tokens }, reply) in pass.iter().zip(reply.rows) {
                    self.absorb(&mut rows[row], tokens, reply)?;
                }
                return Ok(());
            }
            Ok(Err(failure)) => (failure.error, failure.harmless),
            Err(error) => (error, false),
        };
        if !harmless {
            for row in pass {
                let lost = self.table.fault(&mut rows[row.row], error.clone());
                self.free(lost);
            }
        }
        Err(error)
    }

    /// Processes the reply to the next `tokens` of a row.
    fn absorb(&mut self, row: &mut FedRow<'_>, tokens: usize, reply: RowReply) -> Result<()> {
        let answer = match reply.answer {
            // Of whichever kind it is: the cache is lost.
            Err(error) => {
                let lost = self.table.fault(row, error);
                self.free(lost);
                return Ok(());
            }
            Ok(answer) => answer,
        };
        let own = row.progress.new_within(tokens);
        let sequence = self.table.get_mut("step", row.sequence())?;
        sequence.tokens.extend_from_slice(row.next(own));
        sequence.cached = row.progress.recompute.start + tokens;
        sequence.epoch = row.progress.epoch;
        sequence.kv_bytes = reply.kv_bytes;
        row.progress.advance(tokens);
        self.stats.tokens += own as u64;
        row.add_states(&reply.states);
        let answer = match answer {
            RowResult::Hidden(sum) => {
                row.add_hidden(&sum, own);
                RowResult::Extended
            }
            answer => answer,
        };
        let lost = self.table.absorb(row, own, Ok(answer));
        self.free(lost);
        Ok(())
    }
}

impl InferenceSession for MlxSession {
    fn capabilities(&self) -> &Capabilities {
        self.table.capabilities()
    }

    fn open(&mut self) -> Result<SequenceId> {
        self.open_with(&SequenceOptions::default())
    }

    fn open_with(&mut self, options: &SequenceOptions) -> Result<SequenceId> {
        adapters::slot(self.shared.adapters.as_ref(), options, "open sequence")?;
        let (cache, options) = (self.shared.new_cache(), options.clone());
        let (tokens, kv_bytes) = (Vec::new(), 0);
        let sequence = Sequence { cache, tokens, cached: 0, kept: 0, epoch: 0, kv_bytes, options };
        self.table.open("open sequence", sequence)
    }

    fn close(&mut self, sequence: SequenceId) -> Result<()> {
        let closed = self.table.close(sequence)?;
        self.free(closed);
        Ok(())
    }

    fn state(&self, sequence: SequenceId) -> Result<SequenceState> {
        self.table.state(sequence)
    }

    fn step(&mut self, rows: &[Row<'_>], control: &Control<'_>, out: &mut StepOutput) -> Result<()> {
        let mut rows: FedRows<'_> = self.table.begin(rows, out)?;
        while rows.wait(control) {
            for row in rows.iter_mut().filter(|row| Feed::is_due(row)) {
                self.begin_feed(row).unwrap_or_else(|error| row.fail(error));
            }
            let remaining: Vec<usize> = rows.iter().map(Feed::left).collect();
            let claimed = self.table.capabilities();
            let pass = match claimed.generation {
                true => next_pass(&remaining, claimed.prompt_chunk, claimed.batch_rows),
                false => whole_rows(&remaining, claimed.batch_rows),
            };
            if pass.is_empty() {
                break;
            }
            if let Err(error) = self.run_pass(&pass, &mut rows) {
                pass.iter().for_each(|row| rows[row.row].fail(error.clone()));
            }
        }
        rows.finish(out);
        Ok(())
    }

    fn stats(&self) -> SessionStats {
        let mut stats = self.stats;
        stats.kv_bytes = self.table.iter().map(|sequence| sequence.kv_bytes).sum();
        stats
    }

    fn rewind(&mut self, sequence: SequenceId, position: usize) -> Result<()> {
        let is_rewindable = self.table.capabilities().rewind;
        let sequence = self.table.for_rewind(sequence, position)?;
        if position < sequence.cached && !is_rewindable {
            if sequence.kept > position {
                let message = "another row of the sequence followed its draft tokens";
                return Err(Error::unsupported("rewind", message).with_context("position", position));
            }
            let cache = sequence.cache;
            self.shared.worker.post(move |engine| engine.return_to_kept(cache));
            sequence.cached = sequence.kept;
        }
        // Cached positions after `position` are not read, and overwritten.
        sequence.tokens.truncate(position);
        sequence.cached = sequence.cached.min(position);
        Ok(())
    }

    fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId> {
        let source = self.table.for_fork(sequence)?;
        let (from, to) = (source.cache, self.shared.new_cache());
        let (tokens, options) = (source.tokens.clone(), source.options.clone());
        let Sequence { cached, epoch, kv_bytes, .. } = *source;
        let copy = Sequence { cache: to, tokens, cached, kept: 0, epoch, kv_bytes, options };
        let forked = self.shared.worker.call("fork", move |engine| engine.fork(from, to));
        self.poison_if_lost(sequence, from, &forked);
        forked?;
        self.table.open("fork", copy)
    }

    fn snapshot(&mut self, sequence: SequenceId) -> Result<Snapshot> {
        let source = self.table.for_snapshot(sequence)?;
        let (cache, cached, epoch) = (source.cache, source.cached, source.epoch);
        let (tokens, position) = (source.tokens.clone(), source.position());
        let identity = StateIdentity::of_sequence(&self.shared.info, &source.options);
        let states = self.shared.worker.call("snapshot", move |engine| engine.read(cache, cached));
        self.poison_if_lost(sequence, cache, &states);
        let states = states?;
        self.stats.read_back_bytes += states.len() as u64;
        let payload = Contents { tokens, cached, epoch, states }.encode();
        Ok(Snapshot::new(identity, position, payload))
    }

    fn restore(&mut self, snapshot: &Snapshot) -> Result<SequenceId> {
        self.restore_with(snapshot, &SequenceOptions::default())
    }

    fn restore_with(&mut self, snapshot: &Snapshot, options: &SequenceOptions) -> Result<SequenceId> {
        let Shared { info, epochs, adapters, .. } = &*self.shared;
        adapters::slot(adapters.as_ref(), options, "restore")?;
        self.table.check_restore(snapshot, &StateIdentity::of_sequence(info, options))?;
        let contents = snapshot::decode(snapshot, info.vocabulary_size, epochs.count() - 1)?;
        let Contents { tokens, cached, epoch, states } = contents;
        let (cache, uploaded) = (self.shared.new_cache(), states.len() as u64);
        let kv_bytes =
            self.shared.worker.call("restore", move |engine| engine.write(cache, cached, &states))?;
        self.stats.uploaded_bytes += uploaded;
        let options = options.clone();
        self.table.open("restore", Sequence { cache, tokens, cached, kept: 0, epoch, kv_bytes, options })
    }
}

impl Drop for MlxSession {
    fn drop(&mut self) {
        let caches: Vec<CacheId> = self.table.iter().map(|sequence| sequence.cache).collect();
        self.shared.worker.post(move |engine| caches.into_iter().for_each(|cache| engine.forget(cache)));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use mlxcel_core::{ErrorKind, InferenceSessionExt, LoadOptions, SamplingPlan};

    use super::*;
    use crate::engine::{MlxBackend, load};

    #[test]
    fn sequences_whose_cache_a_look_ahead_pass_lost_are_poisoned_whatever_the_error() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/architectures/llama");
        let backend = MlxBackend::new().with_look_ahead(true);
        let model = load::load(&backend, &folder.into(), &LoadOptions::default()).unwrap();
        for kind in [ErrorKind::Device, ErrorKind::ResourceExhausted] {
            let mut session = MlxSession::new(Arc::clone(&model.0), 100);
            let [lost, good] = [(); 2].map(|()| session.open().unwrap());
            for (sequence, tokens) in [(lost, [5, 6]), (good, [7, 8])] {
                session.run_row(Row::extend(sequence, &tokens), &Control::default()).unwrap();
            }
            let cache = session.table.get("test", lost).unwrap().cache;
            let error = Error::new(kind, "step", "the look-ahead pass failed");
            model.0.worker.post(move |engine| engine.lose(&[cache], &error));

            let plan = SamplingPlan::greedy();
            let rows = [Row::next(lost, &[3], &plan), Row::next(good, &[3], &plan)];
            let mut out = StepOutput::new();
            session.step(&rows, &Control::default(), &mut out).unwrap();
            let [failed, next] = <[_; 2]>::try_from(out.take()).unwrap();
            assert_eq!(failed.unwrap_err().kind(), kind);
            assert!(next.is_ok());
            let state = session.state(lost).unwrap();
            assert_eq!((state.position, state.poisoned), (2, true), "{kind:?}");
            assert!(!session.state(good).unwrap().poisoned);
        }
    }
}
