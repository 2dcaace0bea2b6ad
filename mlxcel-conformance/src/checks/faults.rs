//! Device faults. Needs [`Subject::with_faulty`].

use mlxcel_core::{
    Error, ErrorKind, FaultPoint, Faults, InferenceSession, Row, SamplingPlan, SequenceId, SessionOptions,
    TokenId,
};

use crate::failure::{Failure, Outcome, ensure, refused};
use crate::outlook::{expect_token, extend, stands_at, step};
use crate::subject::Subject;
use crate::walk::Walk;

/// How often a point succeeds before it fails: all early ones, and samples of later ones, which loading has
/// many of.
const GOOD: [u64; 12] = [0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144];

/// The points at which a program may have written to sequence states.
const RUNNING: [FaultPoint; 2] = [FaultPoint::Dispatch, FaultPoint::ReadBack];

/// A session whose device fails once at `point`, after `good` successes.
fn faulty(subject: &Subject<'_>, point: FaultPoint, good: u64) -> Outcome<Box<dyn InferenceSession>> {
    let model = subject.faulty_model(&Faults::new(point, good))?;
    let model = model.ok_or_else(|| Failure::new("the subject has no faulty device"))?;
    Ok(model.open_session(&SessionOptions::default())?)
}

/// Feeds `sequence` a token at a time until the device fails.
fn feed_until_it_fails(session: &mut dyn InferenceSession, sequence: SequenceId) -> Outcome {
    for _ in 0..8 {
        let result = step(session, &[Row::next(sequence, &[0], &SamplingPlan::greedy())])?.remove(0);
        if result.is_err() {
            return refused(result, ErrorKind::Device, "a step whose device fails");
        }
    }
    Err(Failure::new("the device did not fail as injected"))
}

/// A sequence with a device fault reports that it is poisoned and can only be closed.
///
/// Kills: `forgets_poison`, `poison_cannot_be_closed`.
pub fn faults_poison(subject: &Subject<'_>) -> Outcome {
    each_running(subject, poison)
}

/// Runs a check with a fault at each point of a running program, of which the subject must have one.
fn each_running(subject: &Subject<'_>, check: fn(&Subject<'_>, FaultPoint) -> Outcome) -> Outcome {
    let points = RUNNING.iter().filter(|point| subject.fault_points().contains(point));
    let points: Vec<FaultPoint> = points.copied().collect();
    ensure!(!points.is_empty(), "the subject's faulty device never fails while a program runs");
    points.into_iter().try_for_each(|point| check(subject, point).map_err(|failure| failure.during(point)))
}

fn poison(subject: &Subject<'_>, point: FaultPoint) -> Outcome {
    let mut session = faulty(subject, point, 1)?;
    let plan = SamplingPlan::greedy();
    let tokens = subject.tokens(0, 4)?;
    let sequence = session.open()?;
    extend(&mut *session, sequence, &tokens)?;
    feed_until_it_fails(&mut *session, sequence)?;
    ensure!(session.state(sequence)?.poisoned, "a device fault left the sequence healthy");
    let poisoned = ErrorKind::Poisoned;
    for _ in 0..2 {
        let result = step(&mut *session, &[Row::next(sequence, &tokens[..1], &plan)])?.remove(0);
        refused(result, poisoned, "a step of a poisoned sequence")?;
        let claimed = session.capabilities().clone();
        if claimed.rewind {
            refused(session.rewind(sequence, 0), poisoned, "rewinding a poisoned sequence")?;
        }
        if claimed.fork && claimed.sequences >= 2 {
            refused(session.fork(sequence), poisoned, "forking a poisoned sequence")?;
        }
        if claimed.snapshot {
            refused(session.snapshot(sequence), poisoned, "a snapshot of a poisoned sequence")?;
        }
        ensure!(session.state(sequence)?.poisoned, "querying a poisoned sequence cleared the poison");
    }
    session.close(sequence)?;
    refused(session.state(sequence), ErrorKind::NotFound, "a poisoned sequence after it was closed")?;
    let mut walk = Walk::open(&mut *session, tokens)?;
    walk.run(subject, &mut *session, 2, "a new sequence after a fault")
}

/// A fault poisons the sequences of the rows that ran, and no others. Needs two sequences.
///
/// Kills: `faults_poison_all`.
pub fn faults_spare_the_others(subject: &Subject<'_>) -> Outcome {
    each_running(subject, spare_the_others)
}

fn spare_the_others(subject: &Subject<'_>, point: FaultPoint) -> Outcome {
    let mut session = faulty(subject, point, 2)?;
    let plan = SamplingPlan::greedy();
    let mut idle = Walk::open(&mut *session, subject.tokens(1, 5)?)?;
    idle.run(subject, &mut *session, 1, "before")?;
    let running = session.open()?;
    feed_until_it_fails(&mut *session, running)?;
    stands_at(&*session, idle.sequence, idle.held.len())?;
    idle.run(subject, &mut *session, 2, "after a fault of another sequence")?;
    // A poisoned row and a healthy one.
    let rows = [Row::next(running, &[0], &plan), Row::next(idle.sequence, &idle.pending, &plan)];
    let mut results = step(&mut *session, &rows)?;
    let healthy = results.remove(1)?;
    refused(results.remove(0), ErrorKind::Poisoned, "a poisoned row beside a healthy one")?;
    idle.take(subject, &expect_token(healthy)?, "beside a poisoned row")
}

/// Wherever the device fails (loading, step, fork, snapshot or restore), the call returns an error of that
/// failure's kind, and each sequence is either poisoned or continues correctly from its reported position. A
/// failure before a program starts poisons nothing.
///
/// Kills: `short_memory_poisons`, `short_memory_feeds`.
pub fn faults_anywhere_are_recoverable(subject: &Subject<'_>) -> Outcome {
    for &point in subject.fault_points() {
        for good in GOOD {
            let faults = Faults::new(point, good);
            let survived = Survival { subject, point, faults: &faults, told: None, opened: 0 }.run();
            survived.map_err(|failure| failure.during(format_args!("{point} fails after {good}")))?;
            if !faults.has_struck() {
                ensure!(good > 0, "{point} is declared as a fault point, but the engine never reached it");
                break;
            }
        }
    }
    Ok(())
}

/// A session with one injected fault.
struct Survival<'a, 's> {
    subject: &'a Subject<'s>,
    point: FaultPoint,
    faults: &'a Faults,
    /// The number of sequences opened when the fault was first reported. Each affected sequence of them
    /// reports it once.
    told: Option<u64>,
    opened: u64,
}

impl Survival<'_, '_> {
    fn run(&mut self) -> Outcome {
        let model = match self.subject.faulty_model(self.faults) {
            Ok(model) => model,
            Err(error) => return self.expect(&error),
        };
        let model = model.ok_or_else(|| Failure::new("the subject has no faulty device"))?;
        let session = &mut *model.open_session(&SessionOptions::default())?;
        let claimed = session.capabilities().clone();
        let long = self.subject.length(40)?;
        let mut walks = vec![self.open(session, self.subject.tokens(0, long)?)?];
        if claimed.sequences >= 2 {
            walks.push(self.open(session, self.subject.tokens(1, 3)?)?);
        }
        for _ in 0..3 {
            self.advance(session, &mut walks)?;
        }
        if claimed.fork && claimed.sequences >= 3 {
            let forked = session.fork(walks[0].sequence);
            if let Some(fork) = self.tolerate(session, &mut walks[0], forked)? {
                self.go_on_from(session, fork, &walks[0])?;
            }
        }
        if claimed.snapshot && claimed.sequences >= 3 {
            let snapshot = session.snapshot(walks[0].sequence);
            if let Some(snapshot) = self.tolerate(session, &mut walks[0], snapshot)? {
                let restored = session.restore(&snapshot);
                if let Some(copy) = self.tolerate(session, &mut walks[0], restored)? {
                    self.go_on_from(session, copy, &walks[0])?;
                }
            }
        }
        self.advance(session, &mut walks)?;
        for walk in walks {
            session.close(walk.sequence)?;
        }
        let fresh = self.open(session, self.subject.tokens(2, 5)?)?;
        self.advance(session, &mut [fresh])
    }

    fn open(&mut self, session: &mut dyn InferenceSession, prompt: Vec<TokenId>) -> Outcome<Walk> {
        let walk = Walk::open(session, prompt)?;
        self.opened = self.opened.max(walk.sequence.number() + 1);
        Ok(walk)
    }

    /// The result of an operation on the sequence of `walk`; `None` if it failed as injected.
    fn tolerate<T>(
        &mut self,
        session: &mut dyn InferenceSession,
        walk: &mut Walk,
        result: mlxcel_core::Result<T>,
    ) -> Outcome<Option<T>> {
        let error = match result {
            Ok(value) => return Ok(Some(value)),
            Err(error) => error,
        };
        let known = self.told;
        self.recover(session, walk, &error, known)?;
        Ok(None)
    }

    /// Fails unless `error` is that of the injected fault.
    fn expect(&self, error: &Error) -> Outcome {
        ensure!(self.faults.has_struck(), "an error before the injected fault: {error}");
        ensure!(
            error.kind() == self.point.kind(),
            "the error is of kind `{}`, not `{}`: {error}",
            error.kind(),
            self.point.kind()
        );
        Ok(())
    }

    /// A sequence with the same tokens as `walk` takes a step and is closed.
    fn go_on_from(
        &mut self,
        session: &mut dyn InferenceSession,
        sequence: SequenceId,
        walk: &Walk,
    ) -> Outcome {
        stands_at(session, walk.sequence, walk.held.len())?;
        self.opened = self.opened.max(sequence.number() + 1);
        let mut copy = [Walk { sequence, held: walk.held.clone(), pending: walk.pending.clone() }];
        self.advance(session, &mut copy)?;
        Ok(session.close(copy[0].sequence)?)
    }

    /// All walks take one step; those that fail retry it.
    fn advance(&mut self, session: &mut dyn InferenceSession, walks: &mut [Walk]) -> Outcome {
        let plan = SamplingPlan::greedy();
        let rows: Vec<_> = walks.iter().map(|walk| Row::next(walk.sequence, &walk.pending, &plan)).collect();
        let known = self.told;
        let results = step(session, &rows)?;
        for (walk, result) in walks.iter_mut().zip(results) {
            match result {
                Ok(result) => walk.take(self.subject, &expect_token(result)?, "beside a fault")?,
                Err(error) => {
                    self.recover(session, walk, &error, known)?;
                    walk.run(self.subject, session, 1, "again after a fault")?;
                }
            }
        }
        Ok(())
    }

    /// Reads the state of `walk`'s sequence after `error`, and replaces the sequence if it was poisoned.
    /// `known` is the state of `told` before the operation.
    fn recover(
        &mut self,
        session: &mut dyn InferenceSession,
        walk: &mut Walk,
        error: &Error,
        known: Option<u64>,
    ) -> Outcome {
        self.expect(error)?;
        let state = session.state(walk.sequence)?;
        let may_tell = known.is_none_or(|opened| state.poisoned && walk.sequence.number() < opened);
        ensure!(may_tell, "sequence {} failed by a fault reported before: {error}", walk.sequence);
        self.told = self.told.or(Some(self.opened));
        if state.poisoned {
            ensure!(
                error.kind() == ErrorKind::Device,
                "a sequence was poisoned before anything ran: {error}"
            );
            session.close(walk.sequence)?;
            walk.held.append(&mut walk.pending);
            let again = self.open(session, std::mem::take(&mut walk.held))?;
            *walk = again;
            return Ok(());
        }
        // Whole chunks of a prompt may have been fed before.
        let fed = state.position.checked_sub(walk.held.len()).filter(|fed| *fed < walk.pending.len());
        let fed = fed.ok_or_else(|| {
            Failure::new(format!(
                "a sequence of {} tokens fed with {} is at position {} after an error",
                walk.held.len(),
                walk.pending.len(),
                state.position
            ))
        })?;
        walk.held.extend(walk.pending.drain(..fed));
        Ok(())
    }
}
