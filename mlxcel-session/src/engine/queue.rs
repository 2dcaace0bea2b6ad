//! The bounded queue of requests to the engine's thread; it closes when that thread ends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mlxcel_core::{CancelToken, Error, ErrorKind, Result};

use super::adapters::AdapterCounts;
use super::bell::Bell;
use super::channel::{Receiver, Sender, channel, thread_is_gone};
use super::guard::{EngineId, contained};
use super::options::Limits;
use super::request::Share;
use super::stats::EngineStats;
use super::texts::Job;
use crate::generation::TextGeneration;
use crate::sync::{Condvar, Mutex, MutexGuard, lock_when, unpoisoned};

/// A request that has no sequence.
pub(super) struct Entry {
    /// In the order of arrival.
    pub(super) number: u64,
    /// Larger goes first.
    pub(super) priority: i32,
    /// Whom it counts for.
    pub(super) share: Share,
    pub(super) generation: TextGeneration,
    pub(super) sender: Sender,
    pub(super) submitted: Instant,
    /// Whether it had a sequence before.
    pub(super) begun: bool,
    /// Whether it was begun again after a fault.
    pub(super) retried: bool,
    pub(super) span: tracing::Span,
}

/// What the handles of an engine, its streams and its thread share.
pub(super) struct Queue {
    state: Mutex<State>,
    /// Room was made, or the queue was closed.
    room: Condvar,
    /// The thread has ended.
    done: Condvar,
    pub(super) limits: Limits,
    pub(super) adapters: Arc<AdapterCounts>,
    /// Wakes the engine's thread.
    pub(super) bell: Arc<Bell>,
    /// Stops the step that is running, and with it everything.
    pub(super) stop: CancelToken,
}

/// How many requests wait, by client.
#[derive(Clone, Debug, Default)]
pub(super) struct Waiting(BTreeMap<u64, usize>);

impl Waiting {
    pub(super) fn add(&mut self, client: u64) {
        *self.0.entry(client).or_default() += 1;
    }

    fn remove(&mut self, client: u64) {
        if let Some(count) = self.0.get_mut(&client) {
            *count = count.saturating_sub(1);
        }
    }

    fn of(&self, client: u64) -> usize {
        self.0.get(&client).copied().unwrap_or_default()
    }

    fn all(&self) -> usize {
        self.0.values().sum()
    }

    /// The client with the most requests, if these are more than those of `client` would be with another one.
    fn longest_beyond(&self, client: u64) -> Option<u64> {
        let (&longest, &count) = self.0.iter().max_by_key(|&(_, &count)| count)?;
        (count > self.of(client) + 1).then_some(longest)
    }
}

#[derive(Default)]
struct State {
    /// What the thread has not seen yet.
    arrived: Vec<Entry>,
    /// Calls with texts that the thread has not seen yet.
    jobs: Vec<Job>,
    /// How many requests of each client have never had a sequence, those that the thread has seen included.
    waiting: Waiting,
    /// Clients whose newest waiting request makes room for others, once for each time.
    displaced: Vec<u64>,
    /// How many sequences nobody holds or is owed, as of the last turn.
    free: usize,
    /// How many requests were taken.
    submitted: u64,
    refused: u64,
    /// Why no more requests are taken.
    closed: Option<Error>,
    done: bool,
    stats: EngineStats,
}

impl Queue {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            state: Mutex::new(State { free: limits.sequences, ..State::default() }),
            room: Condvar::new(),
            done: Condvar::new(),
            limits,
            adapters: Arc::default(),
            bell: Arc::default(),
            stop: CancelToken::new(),
        }
    }

    /// Adds a request; if neither a sequence is free nor the queue has room, it waits for room until
    /// `patience` is over. The request is paused when its reader has `unread_tokens` to read. Returns the
    /// request's number and the reader's end of its channel.
    pub(super) fn push(
        &self,
        generation: TextGeneration,
        priority: i32,
        share: Share,
        submitted: Instant,
        patience: Duration,
        unread_tokens: usize,
    ) -> Result<(u64, Receiver)> {
        let deadline = generation.tokens().options().deadline;
        let left = deadline.map_or(patience, |end| end.saturating_duration_since(submitted).min(patience));
        let has_room = |state: &State| state.closed.is_some() || !self.is_full(state);
        let mut state = self.lock_when(&self.room, left, has_room);
        if let Some(error) = &state.closed {
            return Err(error.clone());
        }
        // A request that waited until its time has passed needs no room: it ends in the next turn.
        let is_over = !patience.is_zero() && deadline.is_some_and(|deadline| deadline <= Instant::now());
        if self.is_full(&state) && !is_over {
            state.refused += 1;
            let Some(client) = state.waiting.longest_beyond(share.client) else { return Err(self.full()) };
            state.waiting.remove(client);
            state.displaced.push(client);
        }
        let number = state.submitted;
        let prompt_tokens = generation.tokens().prompt_length();
        let span = tracing::info_span!("request", number, prompt_tokens, priority);
        let (sender, receiver) = channel(unread_tokens, Arc::clone(&self.bell));
        state.submitted += 1;
        state.waiting.add(share.client);
        state.arrived.push(Entry {
            number,
            priority,
            share,
            generation,
            sender,
            submitted,
            begun: false,
            retried: false,
            span,
        });
        drop(state);
        self.bell.ring();
        Ok((number, receiver))
    }

    /// Whether as many requests wait as have free sequences or a place in the queue. The thread looks at new
    /// requests between steps only, and a step may take long, so that those that are about to begin count
    /// as waiting.
    fn is_full(&self, state: &State) -> bool {
        state.waiting.all() >= self.limits.queue.saturating_add(state.free)
    }

    /// Why a request is not taken, or not kept.
    pub(super) fn full(&self) -> Error {
        let reason = "the queue of the engine is full; try again later";
        Error::new(ErrorKind::ResourceExhausted, "submit request", reason)
            .with_context("queue", self.limits.queue)
    }

    /// Takes the requests that arrived, for the thread, and the clients whose newest request is displaced.
    /// They count as queued until it publishes what became of them.
    pub(super) fn take(&self) -> (Vec<Entry>, Vec<u64>) {
        let mut state = unpoisoned(self.state.lock());
        let taken = std::mem::take(&mut state.arrived);
        state.stats.queued += taken.len();
        (taken, std::mem::take(&mut state.displaced))
    }

    /// Adds a call with texts.
    pub(super) fn push_job(&self, job: Job) -> Result<()> {
        let mut state = unpoisoned(self.state.lock());
        if let Some(error) = &state.closed {
            return Err(error.clone());
        }
        state.jobs.push(job);
        drop(state);
        self.bell.ring();
        Ok(())
    }

    /// Takes the calls with texts that arrived, for the thread.
    pub(super) fn take_jobs(&self) -> Vec<Job> {
        std::mem::take(&mut unpoisoned(self.state.lock()).jobs)
    }

    /// Publishes what the thread has done: these requests `wait` for their first sequence, and `free`
    /// sequences are left for others.
    pub(super) fn publish(&self, waiting: Waiting, free: usize, stats: &EngineStats) {
        let mut state = unpoisoned(self.state.lock());
        state.stats = *stats;
        let before = state.waiting.all();
        state.waiting = waiting;
        let State { arrived, waiting, displaced, .. } = &mut *state;
        arrived.iter().for_each(|entry| waiting.add(entry.share.client));
        displaced.iter().for_each(|&client| waiting.remove(client));
        let more = state.waiting.all() < before || free > state.free;
        state.free = free;
        drop(state);
        if more {
            self.room.notify_all();
        }
    }

    pub(super) fn stats(&self) -> EngineStats {
        let state = unpoisoned(self.state.lock());
        let mut stats = state.stats;
        stats.queued += state.arrived.len();
        stats.submitted = state.submitted;
        stats.refused = state.refused;
        stats.kv_token_limit = self.limits.kv_tokens;
        stats
    }

    /// Takes no more requests; the first reason stays.
    pub(super) fn close(&self, reason: Error) {
        unpoisoned(self.state.lock()).closed.get_or_insert(reason);
        self.room.notify_all();
        self.bell.ring();
    }

    /// Why no more requests are taken.
    pub(super) fn closed(&self) -> Option<Error> {
        unpoisoned(self.state.lock()).closed.clone()
    }

    /// Whether the thread may end where it has no requests.
    pub(super) fn is_closed_and_empty(&self) -> bool {
        let state = unpoisoned(self.state.lock());
        state.closed.is_some() && state.arrived.is_empty() && state.jobs.is_empty()
    }

    /// Says that the thread has panicked: no more requests are taken, and all that there are count as failed.
    pub(super) fn fail(&self) {
        self.close(thread_is_gone());
        let mut state = unpoisoned(self.state.lock());
        let lost = state.stats.queued + state.stats.running + state.arrived.len();
        state.stats.failed += lost as u64;
        (state.stats.queued, state.stats.running, state.stats.paused) = (0, 0, 0);
        (state.stats.kv_bytes, state.stats.kv_tokens) = (0, 0);
    }

    /// Says that the thread has ended. Requests that it has not seen end with an error.
    pub(super) fn end(&self) {
        let mut state = unpoisoned(self.state.lock());
        let lost = (std::mem::take(&mut state.arrived), std::mem::take(&mut state.jobs));
        state.waiting = Waiting::default();
        state.done = true;
        drop(state);
        self.room.notify_all();
        self.done.notify_all();
        lost.0.into_iter().for_each(|entry| contained(|| drop(entry)));
    }

    /// Waits for the end of the thread, at most for `limit`; false where it has not ended.
    pub(super) fn wait_for_end(&self, limit: Duration) -> bool {
        self.lock_when(&self.done, limit, |state| state.done).done
    }

    /// The state once it is `ready` or `limit` has passed; at once in code for which the thread itself waits.
    fn lock_when(
        &self,
        changed: &Condvar,
        limit: Duration,
        ready: impl Fn(&State) -> bool,
    ) -> MutexGuard<'_, State> {
        let limit = if EngineId::of(&self.bell).is_waiting_for_us() { Duration::ZERO } else { limit };
        lock_when(&self.state, changed, limit, ready)
    }
}
