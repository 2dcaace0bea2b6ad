//! Mutants that misbehave as a whole: threads, sessions and models, cancellation, faults, methods of their
//! own.

use std::collections::BTreeSet;
use std::thread::ThreadId;

use mlxcel_core::{
    CancelToken, Control, Error, ErrorKind, InferenceSession, Result, Row, RowResult, SequenceId,
    SequenceState, SessionStats,
};

use crate::mutants::Mutants;
use crate::mutants::context::misread;
use crate::mutants::twist::{Closing, Inner, Results, Rowing, Stepping, Twist, run};

pub(crate) const TWISTS: Mutants<fn() -> Box<dyn Twist>> = &[
    ("bound_to_thread", || Box::new(BoundToThread::default())),
    ("sessions_are_one", || Box::new(SessionsAreOne)),
    ("cancel_sticks", || Box::new(CancelSticks::default())),
    ("faults_poison_all", || Box::new(Poisons::by(ErrorKind::Device, true))),
    ("short_memory_poisons", || Box::new(Poisons::by(ErrorKind::ResourceExhausted, false))),
];

pub(crate) const CLOSES: Mutants<Closing> = &[("poison_cannot_be_closed", |inner, sequence| {
    if inner.session.state(sequence)?.poisoned {
        return Err(Error::new(ErrorKind::Poisoned, "close sequence", "it is poisoned"));
    }
    inner.session.close(sequence)
})];

pub(crate) const ROWS: Mutants<Rowing> = &[
    // Looks at the step's cancellation alone.
    ("ignores_cancelled_rows", |row| row.cancel = None),
];

pub(crate) const STEPS: Mutants<Stepping> = &[
    // Works as long as the model is held.
    ("session_dies_with_model", |inner, rows, control| {
        if inner.model.upgrade().is_none() {
            return Err(Error::new(ErrorKind::Device, "step", "the weights are gone"));
        }
        inner.step(rows, control)
    }),
    // On every thread but the model's first, caches begin one token late.
    ("serves_one_thread", |inner, rows, control| {
        let mut results = inner.step(rows, control)?;
        let here = std::thread::current().id();
        if *inner.shared.thread.get_or_init(|| here) == here {
            return Ok(results);
        }
        for (row, result) in rows.iter().zip(&mut results) {
            if result.is_ok() {
                let held = inner.text(row.sequence);
                *result = misread(inner, held.get(1..).unwrap_or_default(), row);
            }
        }
        Ok(results)
    }),
    ("ignores_cancel", |inner, rows, _| inner.step(rows, &Control::default())),
    // Takes the cancellation of a row for that of the step.
    ("cancelled_row_stops_the_others", |inner, rows, control| {
        match rows.iter().find_map(|row| row.cancel.filter(|cancel| cancel.is_cancelled())) {
            Some(cancel) => inner.step(rows, &Control::cancelled_by(cancel)),
            None => inner.step(rows, control),
        }
    }),
    // A cancelled row takes a token back too many.
    ("cancel_loses_a_token", |inner, rows, control| {
        let results = inner.step(rows, control)?;
        for sequence in answered_by(ErrorKind::Cancelled, rows, &results) {
            let position = inner.session.state(sequence)?.position;
            inner.session.rewind(sequence, position.saturating_sub(1))?;
        }
        Ok(results)
    }),
    // A sequence that there was no memory for moves on all the same.
    ("short_memory_feeds", |inner, rows, control| {
        let results = inner.step(rows, control)?;
        let failed = answered_by(ErrorKind::ResourceExhausted, rows, &results);
        for row in rows.iter().filter(|row| failed.contains(&row.sequence)) {
            inner.step(&[Row::extend(row.sequence, row.tokens)], control)?;
        }
        Ok(results)
    }),
];

/// The sequences whose rows were answered by an error of this kind.
fn answered_by(kind: ErrorKind, rows: &[Row<'_>], results: &[Result<RowResult>]) -> Vec<SequenceId> {
    let failed = rows.iter().zip(results).filter(|(_, result)| is(kind, result));
    failed.map(|(row, _)| row.sequence).collect()
}

/// Whether a row was answered by an error of this kind.
fn is(kind: ErrorKind, result: &Result<RowResult>) -> bool {
    result.as_ref().is_err_and(|error| error.kind() == kind)
}

/// Works on the thread that it was first used on.
#[derive(Default)]
struct BoundToThread {
    thread: Option<ThreadId>,
}

impl Twist for BoundToThread {
    fn step(&mut self, inner: &mut Inner, rows: &[Row<'_>], control: &Control<'_>) -> Results {
        let here = std::thread::current().id();
        if *self.thread.get_or_insert(here) != here {
            return Err(Error::new(ErrorKind::Device, "step", "there is no stream on this thread"));
        }
        inner.step(rows, control)
    }
}

/// All sessions of a model are one.
struct SessionsAreOne;

impl SessionsAreOne {
    fn with<T>(inner: &Inner, act: impl FnOnce(&mut dyn InferenceSession) -> T) -> T {
        act(&mut *inner.shared.session.lock().unwrap())
    }
}

impl Twist for SessionsAreOne {
    fn open(&mut self, inner: &mut Inner) -> Result<SequenceId> {
        Self::with(inner, |session| session.open())
    }
    fn close(&mut self, inner: &mut Inner, sequence: SequenceId) -> Result<()> {
        Self::with(inner, |session| session.close(sequence))
    }
    fn state(&self, inner: &Inner, sequence: SequenceId) -> Result<SequenceState> {
        Self::with(inner, |session| session.state(sequence))
    }
    fn step(&mut self, inner: &mut Inner, rows: &[Row<'_>], control: &Control<'_>) -> Results {
        Self::with(inner, |session| run(session, rows, control))
    }
    fn stats(&self, inner: &Inner) -> SessionStats {
        Self::with(inner, |session| session.stats())
    }
}

/// Looks at cancellation before a step alone: that of the step, or those of its rows.
pub(crate) struct NoticesAtTheStart {
    pub(crate) steps: bool,
}

impl Twist for NoticesAtTheStart {
    fn step(&mut self, inner: &mut Inner, rows: &[Row<'_>], control: &Control<'_>) -> Results {
        let cancelled = CancelToken::new();
        cancelled.cancel();
        let mut now = *control;
        if self.steps {
            now.cancel = control.check("step").is_err().then_some(&cancelled);
        }
        let mut rows = rows.to_vec();
        for row in rows.iter_mut().filter(|row| !self.steps && row.check("step").is_ok()) {
            row.cancel = None;
        }
        inner.step(&rows, &now)
    }
}

/// A cancelled sequence says that it holds one token more than it does.
#[derive(Default)]
pub(crate) struct CancelOverstates {
    sequences: BTreeSet<SequenceId>,
}

impl Twist for CancelOverstates {
    fn state(&self, inner: &Inner, sequence: SequenceId) -> Result<SequenceState> {
        let mut state = inner.session.state(sequence)?;
        state.position += usize::from(self.sequences.contains(&sequence));
        Ok(state)
    }
    fn step(&mut self, inner: &mut Inner, rows: &[Row<'_>], control: &Control<'_>) -> Results {
        let results = inner.step(rows, control)?;
        self.sequences.extend(answered_by(ErrorKind::Cancelled, rows, &results));
        Ok(results)
    }
}

/// Once it was cancelled it stays so.
#[derive(Default)]
struct CancelSticks {
    error: Option<Error>,
}

impl Twist for CancelSticks {
    fn step(&mut self, inner: &mut Inner, rows: &[Row<'_>], control: &Control<'_>) -> Results {
        if let Some(error) = &self.error {
            return Ok(rows.iter().map(|_| Err(error.clone())).collect());
        }
        let results = inner.step(rows, control)?;
        self.error =
            results.iter().find(|result| is(ErrorKind::Cancelled, result)).and_then(|row| row.clone().err());
        Ok(results)
    }
}

/// After an error of a kind, its row or everything that is open says that it is poisoned.
struct Poisons {
    kind: ErrorKind,
    all: bool,
    poisoned: BTreeSet<SequenceId>,
}

impl Poisons {
    fn by(kind: ErrorKind, all: bool) -> Self {
        Self { kind, all, poisoned: BTreeSet::new() }
    }
}

impl Twist for Poisons {
    fn state(&self, inner: &Inner, sequence: SequenceId) -> Result<SequenceState> {
        let mut state = inner.session.state(sequence)?;
        state.poisoned |= self.poisoned.contains(&sequence);
        Ok(state)
    }
    fn step(&mut self, inner: &mut Inner, rows: &[Row<'_>], control: &Control<'_>) -> Results {
        let results = inner.step(rows, control)?;
        let failed = answered_by(self.kind, rows, &results);
        if self.all && !failed.is_empty() {
            let known = (0..64).map(SequenceId::new);
            self.poisoned.extend(known.filter(|id| inner.session.state(*id).is_ok()));
        }
        self.poisoned.extend(failed);
        Ok(results)
    }
}
