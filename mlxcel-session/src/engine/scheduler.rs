//! The scheduler: assigns sequences to requests, plans each step and handles its results.

use std::sync::Arc;
use std::time::Instant;

use mlxcel_core::{
    CancelToken, Control, Error, ErrorKind, FinishReason, InferenceSession, Result, Row, SequenceId,
    StepOutput,
};

use super::accept::{Answer, Fate};
use super::adapters::AdapterCounts;
use super::channel::{End, Sender};
use super::guard::{caught, contained};
use super::options::Limits;
use super::plan::{Planned, Wanted, plan};
use super::queue::{Entry, Queue, Waiting};
use super::sequences::copies;
use super::stats::EngineStats;
use super::texts::Job;
use crate::model::Model;

/// A request that has a sequence.
pub(super) struct Running {
    pub(super) entry: Entry,
    pub(super) sequence: SequenceId,
    /// The step that served it last, or before which it was begun.
    pub(super) served: u64,
    /// Up to when its time is accounted for.
    pub(super) since: Instant,
    /// Where the computation of its prompt rests, for what it has then to be kept.
    pub(super) branch: Option<usize>,
}

impl Running {
    /// What it wants of a step; nothing while it waits for its reader, to whom that time belongs.
    fn wanted(&mut self) -> Wanted {
        let generation = self.entry.generation.tokens();
        let (most, priority, served) = (generation.pending().len(), self.entry.priority, self.served);
        let pending = match self.branch {
            _ if self.is_paused() => {
                self.since = Instant::now();
                0
            }
            Some(branch) => most.min(branch.saturating_sub(generation.computed()).max(1)),
            None => most,
        };
        Wanted { pending, priority, served }
    }

    /// Whether it waits for its reader.
    pub(super) fn is_paused(&self) -> bool {
        self.entry.sender.is_full()
    }
}

/// What a turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// A step was computed.
    Step,
    /// All requests are waiting, for their readers or for another event.
    Waiting,
    /// There are no requests.
    Empty,
}

/// Drives the requests of an engine through one session; a turn is a step with its preparation and results.
pub(super) struct Scheduler {
    pub(super) running: Vec<Running>,
    /// By priority, then by arrival.
    pub(super) waiting: Vec<Entry>,
    /// Calls with texts to embed or to score.
    pub(super) jobs: Vec<Job>,
    /// Whether no text begins before a request has had a step without texts, because it needs their memory.
    pub(super) texts_pause: bool,
    /// Requests whose last word is to be said.
    ended: Vec<(Sender, End)>,
    /// The most requests with a sequence: less than the limit while memory is short.
    pub(super) most: usize,
    pub(super) stats: EngineStats,
    pub(super) adapters: Arc<AdapterCounts>,
    pub(super) limits: Limits,
    pub(super) model: Model,
    pub(super) session: Box<dyn InferenceSession>,
    /// Whether the session copies the beginnings of sequences.
    pub(super) copies: bool,
    out: StepOutput,
    pub(super) stop: CancelToken,
}

impl Scheduler {
    /// A scheduler without requests of `queue` on a session of `model`.
    pub(super) fn new(model: Model, session: Box<dyn InferenceSession>, queue: &Queue) -> Self {
        let limits = queue.limits;
        Self {
            running: Vec::new(),
            waiting: Vec::new(),
            jobs: Vec::new(),
            texts_pause: false,
            ended: Vec::new(),
            most: limits.sequences,
            stats: EngineStats::default(),
            adapters: Arc::clone(&queue.adapters),
            limits,
            model,
            copies: copies(&*session),
            session,
            out: StepOutput::new(),
            stop: queue.stop.clone(),
        }
    }

    /// Takes texts in, ends requests that are to end, gives sequences to those that wait, and computes a
    /// step.
    pub(super) fn turn(&mut self, jobs: Vec<Job>) -> Turn {
        self.jobs.extend(jobs);
        self.sweep();
        self.admit_texts();
        self.admit();
        let stepped = self.step();
        self.count();
        let is_empty = self.running.is_empty() && self.waiting.is_empty() && self.jobs.is_empty();
        match (stepped, is_empty) {
            (true, _) => Turn::Step,
            (false, true) => Turn::Empty,
            (false, false) => Turn::Waiting,
        }
    }

    /// Notifies the readers of the requests that ended, after the statistics of the step are published.
    pub(super) fn deliver(&mut self) {
        for (sender, end) in self.ended.drain(..) {
            sender.end(end);
        }
    }

    /// Ends every request and every call as cancelled.
    pub(super) fn cancel_all(&mut self) {
        self.cancel_texts();
        while let Some(request) = self.running.pop() {
            self.leave(request, Ok(FinishReason::Cancelled));
        }
        for entry in std::mem::take(&mut self.waiting) {
            self.end(entry, Ok(FinishReason::Cancelled));
        }
        self.count();
    }

    /// Takes out all requests.
    pub(super) fn requests(&mut self) -> impl Iterator<Item = Entry> {
        self.running.drain(..).map(|request| request.entry).chain(self.waiting.drain(..))
    }

    /// Puts a request where its priority and its arrival say.
    pub(super) fn wait(&mut self, entry: Entry) {
        let key = |entry: &Entry| (std::cmp::Reverse(entry.priority), entry.number);
        let place = self.waiting.partition_point(|other| key(other) < key(&entry));
        self.waiting.insert(place, entry);
    }

    /// Ends the newest request of `client` that never had a sequence, with `error`: its place goes to another
    /// client.
    pub(super) fn displace(&mut self, client: u64, error: Error) {
        let of_client = |entry: &Entry| entry.share.client == client && !entry.begun;
        if let Some(index) = self.waiting.iter().rposition(of_client) {
            let entry = self.waiting.remove(index);
            self.end(entry, Err(error));
        }
    }

    /// The requests that never had a sequence.
    pub(super) fn unbegun(&self) -> Waiting {
        let mut unbegun = Waiting::default();
        let entries = self.waiting.iter().filter(|entry| !entry.begun);
        entries.for_each(|entry| unbegun.add(entry.share.client));
        unbegun
    }

    /// Ends the requests that are cancelled, abandoned or out of time, wherever they are.
    fn sweep(&mut self) {
        for (entry, reason) in over(&mut self.waiting, |entry| entry) {
            self.end(entry, reason);
        }
        for (request, reason) in over(&mut self.running, |request| &mut request.entry) {
            self.leave(request, reason);
        }
    }

    /// How many sequences are left once those that gave theirs up have them again.
    pub(super) fn free(&self) -> usize {
        let owed = self.waiting.iter().filter(|entry| entry.begun).count();
        self.most.saturating_sub(self.running.len() + owed + self.text_sequences())
    }

    /// Gives a request its sequence.
    pub(super) fn begin(&mut self, mut entry: Entry, sequence: SequenceId, computed: usize) {
        entry.generation.set_computed(computed);
        let now = Instant::now();
        if !entry.begun {
            entry.begun = true;
            let waited = now.saturating_duration_since(entry.submitted);
            entry.generation.set_queued(waited);
            self.stats.longest_wait = self.stats.longest_wait.max(waited);
            let prompt_tokens = entry.generation.tokens().prompt_length();
            self.stats.prompt_tokens += prompt_tokens as u64;
            self.adapters.begin(entry.generation.sequence_options(), prompt_tokens, computed);
            self.stats.reused_tokens += computed as u64;
            entry.span.in_scope(|| tracing::debug!(%sequence, reused_tokens = computed, "begins"));
        }
        let branch = entry.generation.branch(&self.model, &*self.session);
        self.running.push(Running { entry, sequence, served: self.stats.steps, since: now, branch });
    }

    /// Computes a step; false where no request wants one.
    fn step(&mut self) -> bool {
        let wanted: Vec<Wanted> = self.running.iter_mut().map(Running::wanted).collect();
        let mut planned = plan(&wanted, self.limits.step_tokens, self.limits.chunk);
        let mut fates = self.draft(&wanted, &mut planned);
        let mut served: Vec<Planned> = Vec::with_capacity(planned.len());
        let mut rows: Vec<Row<'_>> = Vec::with_capacity(planned.len());
        let mut running: Vec<_> = self.running.iter_mut().map(Some).collect();
        for Planned { index, tokens } in planned {
            let Some(Running { entry, sequence, .. }) = running[index].take() else { continue };
            let (generation, sequence) = (&mut entry.generation, *sequence);
            match caught(move || generation.row(sequence, tokens)) {
                Ok(Some(row)) => {
                    served.push(Planned { index, tokens: row.tokens.len() });
                    rows.push(row);
                }
                Ok(None) => {}
                Err(error) => fates.push((index, Fate::Over(Err(error)))),
            }
        }
        let left = self.limits.step_tokens.saturating_sub(served.iter().map(|row| row.tokens).sum());
        let mut texts = Vec::new();
        for (place, row) in Self::text_rows(&self.jobs, left) {
            texts.push(place);
            rows.push(row);
        }
        if rows.is_empty() {
            let failed = !fates.is_empty();
            self.settle(fates);
            return failed;
        }
        let tokens: usize = rows.iter().map(|row| row.tokens.len()).sum();
        let span = tracing::debug_span!("step", rows = rows.len(), tokens).entered();
        let start = Instant::now();
        // What a newcomer needs is compiled beside those that run, and not in front of them.
        let control = Control::cancelled_by(&self.stop).with_prefer_ready(true);
        let answered = self.session.step(&rows, &control, &mut self.out);
        drop(rows);
        let now = Instant::now();
        drop(span);
        self.stats.steps += 1;
        self.stats.step_time += now.saturating_duration_since(start);
        // The figures are those of the turn before.
        let compile = self.session.stats().compile_time.saturating_sub(self.stats.compile_time);
        let mut results = self.out.take().into_iter();
        let mut result = || match &answered {
            Ok(()) => results.next().unwrap_or_else(|| Err(no_answer())),
            Err(error) => Err(error.clone()),
        };
        let answers = served.into_iter();
        let answers = answers.enumerate().map(|(row, Planned { index, tokens })| {
            let states = self.out.take_states(row);
            Answer { index, tokens, result: result(), states }
        });
        let answers = answers.collect();
        let texts: Vec<_> = texts.into_iter().map(|place| (place, result())).collect();
        fates.extend(self.accept(answers, now, compile));
        self.settle(fates);
        self.accept_texts(texts);
        true
    }

    /// Drafts tokens for the requests of a step, one request after another, as far as its token budget
    /// allows. Not beside a prompt: a pass over one is long enough without.
    ///
    /// Returns what becomes of those whose masks failed; they have no row.
    fn draft(&mut self, wanted: &[Wanted], planned: &mut [Planned]) -> Vec<(usize, Fate)> {
        let mut fates = Vec::new();
        let prompts = planned.iter().any(|row| wanted[row.index].pending > 1);
        let mut left = self.limits.step_tokens.saturating_sub(planned.iter().map(|row| row.tokens).sum());
        for row in planned {
            let generation = &mut self.running[row.index].entry.generation;
            let most = if prompts { 0 } else { left };
            let drafts = caught(|| generation.draft(most));
            if prompts {
                generation.disturb();
            }
            match drafts {
                Ok(drafts) => {
                    row.tokens += drafts;
                    left -= drafts;
                }
                Err(error) => {
                    row.tokens = 0;
                    fates.push((row.index, Fate::Over(Err(error))));
                }
            }
        }
        fates
    }

    /// Lets those go that end, and makes room where memory was short.
    fn settle(&mut self, mut fates: Vec<(usize, Fate)>) {
        // From the last to the first, so that places stay what they are.
        fates.sort_by_key(|&(index, _)| std::cmp::Reverse(index));
        let (mut short, before) = (None, self.running.len());
        for (index, fate) in fates {
            match fate {
                Fate::On => {}
                Fate::Short(error) => short = Some(error),
                Fate::Again => {
                    let mut request = self.running.remove(index);
                    self.close(request.sequence);
                    request.entry.generation.set_computed(0);
                    request.entry.retried = true;
                    self.stats.retried += 1;
                    self.wait(request.entry);
                }
                Fate::Over(reason) => {
                    let request = self.running.remove(index);
                    self.leave(request, reason);
                }
            }
        }
        // What others left may be enough.
        if let Some(error) = short.filter(|_| self.running.len() == before) {
            self.relieve(error);
        }
    }

    /// Ends a request that has a sequence.
    pub(super) fn leave(&mut self, request: Running, reason: Result<FinishReason>) {
        let Running { entry, sequence, .. } = request;
        match &reason {
            Ok(_) => self.give_up(sequence, &entry),
            // It may not hold what the request knows of.
            Err(_) => self.close(sequence),
        }
        self.end(entry, reason);
        self.relax();
    }

    /// Ends a request that has no sequence.
    pub(super) fn end(&mut self, mut entry: Entry, reason: Result<FinishReason>) {
        match &reason {
            Ok(FinishReason::Cancelled) => self.stats.cancelled += 1,
            Ok(FinishReason::TimeLimit) => self.stats.timed_out += 1,
            Ok(_) => self.stats.finished += 1,
            Err(_) => self.stats.failed += 1,
        }
        let usage = entry.generation.usage();
        entry.span.in_scope(|| match &reason {
            Ok(reason) => {
                tracing::debug!(reason = reason.as_str(), tokens = usage.generated_tokens, "ends");
            }
            Err(error) => tracing::warn!(%error, tokens = usage.generated_tokens, "fails"),
        });
        let end = End {
            text: entry.generation.take_text(),
            reason,
            stop_string: entry.generation.stop_string().map(str::to_owned),
            usage: Some(usage),
        };
        self.ended.push((entry.sender, end));
        contained(|| drop(entry.generation));
    }

    fn count(&mut self) {
        self.stats.queued = self.waiting.len();
        self.stats.running = self.running.len();
        let (mut paused, mut tokens) = (0, self.text_tokens());
        for request in &self.running {
            paused += usize::from(request.is_paused());
            tokens += request.entry.generation.tokens().computed();
        }
        (self.stats.paused, self.stats.kv_tokens) = (paused, tokens);
        let session = self.session.stats();
        (self.stats.passes, self.stats.computed_tokens) = (session.passes, session.tokens);
        (self.stats.kv_bytes, self.stats.compile_time) = (session.kv_bytes, session.compile_time);
    }
}

/// Takes those out of `all` whose requests are to end, and says how.
fn over<T>(all: &mut Vec<T>, entry: impl Fn(&mut T) -> &mut Entry) -> Vec<(T, Result<FinishReason>)> {
    let (mut over, mut index) = (Vec::new(), 0);
    while let Some(one) = all.get_mut(index) {
        let Entry { sender, generation, .. } = entry(one);
        let ended = if sender.is_abandoned() { Ok(true) } else { caught(|| generation.poll_end()) };
        let reason = match ended {
            Ok(true) => Some(Ok(generation.finish_reason().unwrap_or(FinishReason::Cancelled))),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        };
        match reason {
            None => index += 1,
            Some(reason) => over.push((all.remove(index), reason)),
        }
    }
    over
}

fn no_answer() -> Error {
    Error::new(ErrorKind::Internal, "step", "the engine did not return one result per row")
}
