//! Handles the results of a step.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use mlxcel_core::{Error, ErrorKind, FinishReason, Result, RowResult, SampledToken};

use super::channel::Item;
use super::guard::{EngineId, caught};
use super::scheduler::{Running, Scheduler};
use crate::generation::TextGeneration;
use crate::sync::unpoisoned;

/// Sampling this many logits on one thread takes less time than starting other threads.
const FEW_LOGITS: usize = 1 << 16;

/// The result of a row of the request at `index`, which had so many tokens.
pub(super) struct Answer {
    pub(super) index: usize,
    pub(super) tokens: usize,
    pub(super) result: Result<RowResult>,
    /// The hidden states of its tokens, if it asked for them.
    pub(super) states: Option<Vec<f32>>,
}

/// What becomes of a request after a step.
pub(super) enum Fate {
    /// The request continues.
    On,
    /// Its sequence is unusable; the request is restarted.
    Again,
    /// Out of memory for its row.
    Short(Error),
    /// The request has ended.
    Over(Result<FinishReason>),
}

impl Scheduler {
    /// Hands the results of a step, which ended at `now`, to their requests, and tokens to their readers.
    pub(super) fn accept(
        &mut self,
        answers: Vec<Answer>,
        now: Instant,
        compile: Duration,
    ) -> Vec<(usize, Fate)> {
        let mut fates = Vec::with_capacity(answers.len());
        let mut results: Vec<Option<_>> = self.running.iter().map(|_| None).collect();
        for Answer { index, tokens, result, states } in answers {
            let Running { entry, served, since, .. } = &mut self.running[index];
            *served = self.stats.steps;
            entry.generation.spend(now.saturating_duration_since(*since), compile);
            *since = now;
            match result {
                Ok(result) => results[index] = Some((tokens, result, states)),
                Err(error) => fates.push((index, self.fail(index, tokens, error))),
            }
        }
        let before = self.drafts();
        let running = self.running.iter_mut().enumerate().zip(results);
        let draws = running.filter_map(|((index, request), result)| {
            let (tokens, result, states) = result?;
            Some(Draw { index, generation: &mut request.entry.generation, tokens, result, states })
        });
        for (index, token) in draw(draws.collect(), self.limits.threads) {
            let fate = self.say(index, token);
            fates.push((index, self.rewind(index, fate)));
            self.keep_branch(index);
        }
        let [drafted, accepted] = self.drafts();
        self.stats.drafted_tokens += drafted - before[0];
        self.stats.accepted_tokens += accepted - before[1];
        fates
    }

    /// Draft tokens of the requests that have a sequence, and how many were accepted.
    fn drafts(&self) -> [u64; 2] {
        self.running.iter().fold([0; 2], |[drafted, accepted], request| {
            let usage = request.entry.generation.usage();
            [drafted + usage.drafted_tokens as u64, accepted + usage.accepted_tokens as u64]
        })
    }

    /// What becomes of the request at `index`, whose row answered an error.
    fn fail(&mut self, index: usize, tokens: usize, error: Error) -> Fate {
        let Running { entry, sequence, .. } = &mut self.running[index];
        let state = self.session.state(*sequence).ok().filter(|state| !state.poisoned);
        let room = state.map_or(0, |state| state.remaining());
        // Tokens computed before the stop remain.
        if let Some(state) = state {
            entry.generation.set_position(state.position);
            if let Err(error) = entry.generation.rewind(&mut *self.session, *sequence) {
                return Fate::Over(Err(error));
            }
        }
        match error.kind() {
            ErrorKind::ResourceExhausted => Fate::Short(error),
            // Of the session, and not of the sequence.
            ErrorKind::CapacityExceeded if room >= tokens => Fate::Short(error),
            ErrorKind::Device | ErrorKind::Poisoned if !entry.retried => {
                entry.span.in_scope(|| tracing::warn!(%error, "is recomputed after a fault"));
                Fate::Again
            }
            // All that stops a row is looked at again before the next step.
            ErrorKind::Cancelled if self.stop.is_cancelled() => Fate::On,
            ErrorKind::Cancelled => match caught(|| entry.generation.poll_end()) {
                Ok(true) => Fate::On,
                _ => Fate::Over(Err(error)),
            },
            _ => Fate::Over(Err(error)),
        }
    }

    /// Hands a token to the reader of the request at `index`, and those that are ready behind it.
    fn say(&mut self, index: usize, token: Result<Option<SampledToken>>) -> Fate {
        let entry = &mut self.running[index].entry;
        let mut next = token;
        loop {
            match next {
                Ok(Some(token)) => {
                    self.stats.generated_tokens += 1;
                    self.adapters.token(entry.generation.sequence_options());
                    let (text, usage) = (entry.generation.take_text(), entry.generation.usage());
                    entry.sender.send(Item { token, text, usage });
                    next = caught(|| entry.generation.next_ready());
                }
                Ok(None) => {
                    return entry
                        .generation
                        .finish_reason()
                        .map_or(Fate::On, |reason| Fate::Over(Ok(reason)));
                }
                Err(error) => return Fate::Over(Err(error)),
            }
        }
    }

    /// Rewinds the sequence of the request at `index` from wrong draft tokens; its fate where that fails.
    fn rewind(&mut self, index: usize, fate: Fate) -> Fate {
        let Running { entry, sequence, .. } = &mut self.running[index];
        match (entry.generation.rewind(&mut *self.session, *sequence), fate) {
            (Err(error), Fate::On) => Fate::Over(Err(error)),
            (_, fate) => fate,
        }
    }
}

/// A result on its way into its generation.
struct Draw<'a> {
    index: usize,
    generation: &'a mut TextGeneration,
    tokens: usize,
    result: RowResult,
    states: Option<Vec<f32>>,
}

impl Draw<'_> {
    fn run(self) -> (usize, Result<Option<SampledToken>>) {
        let accepted = caught(|| {
            if let Some(states) = &self.states {
                self.generation.add_states(states);
            }
            self.generation.accept(self.tokens, self.result)
        });
        (self.index, accepted)
    }

    fn logits(&self) -> usize {
        match &self.result {
            RowResult::Logits(rows) => rows.iter().map(Vec::len).sum(),
            _ => 0,
        }
    }
}

/// Hands results to their generations. Where the host draws from many logits, which takes milliseconds for
/// each row, threads share it.
fn draw(draws: Vec<Draw<'_>>, threads: usize) -> Vec<(usize, Result<Option<SampledToken>>)> {
    let logits: usize = draws.iter().map(Draw::logits).sum();
    let threads = if logits <= FEW_LOGITS { 1 } else { threads.min(draws.len()) };
    let run = |draws: Vec<Draw<'_>>| draws.into_iter().map(Draw::run).collect::<Vec<_>>();
    if threads <= 1 {
        return run(draws);
    }
    let (share, engine) = (draws.len().div_ceil(threads), EngineId::current());
    let left = Mutex::new(draws);
    let parts = || {
        let mut left = unpoisoned(left.lock());
        let at = left.len().saturating_sub(share);
        Some(left.split_off(at)).filter(|part| !part.is_empty())
    };
    let work = || std::iter::from_fn(parts).flat_map(run).collect::<Vec<_>>();
    std::thread::scope(|scope| {
        let mut others = Vec::with_capacity(threads);
        for _ in 1..threads {
            let other = || {
                EngineId::enter(engine);
                work()
            };
            match std::thread::Builder::new().name("mlxcel-draw".to_owned()).spawn_scoped(scope, other) {
                Ok(other) => others.push(other),
                // With threads that the system does not grant it takes longer, and that is all.
                Err(_) => break,
            }
        }
        let mut drawn = work();
        for other in others {
            drawn.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        drawn
    })
}
