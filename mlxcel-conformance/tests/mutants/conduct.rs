//! Mutants that misbehave as a whole: threads, sessions and models, cancellation, faults, methods of their
//! own.

use std::collections::BTreeSet;
use std::thread::ThreadId;

use mlxcel_core::{
    CancelToken, Control, Error, ErrorKind, InferenceSession, Result, Row, RowResult, SequenceId,
    SequenceState, SessionStats,
};

use crate::mutants::context::misread;
use crate::mutants::twist::{Inner, Results, Twist, run, text};

/// Works as long as the model is held.
pub(crate) struct DiesWithModel;

impl Twist for DiesWithModel {
    fn step(&mut self, inner: &mut Inner, rows: &[Row<'_>], control: &Control<'_>) -> Results {
        if inner.model.upgrade().is_none() {
            return Err(Error::new(ErrorKind::Device, "step", "the weights are gone"));
        }
        inner.step(rows, control)
    }
}

/// Works on the thread that it was first used on.
#[derive(Default)]
pub(crate) struct BoundToThread {
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

/// On every thread but the model's first, caches begin one token late.
pub(crate) struct ServesOneThread;

impl Twist for ServesOneThread {
    fn step(&mut self, inner: &mut Inner, rows: &[Row<'_>], control: &Control<'_>) -> Results {
        let mut results = inner.step(rows, control)?;
        let here = std::thread::current().id();
        if *inner.shared.thread.get_or_init(|| here) == here {
            return Ok(results);
        }
        for (row, result) in rows.iter().zip(&mut results) {
            if result.is_ok() {
                let held = text(&mut *inner.session, row.sequence);
                *result = misread(inner, held.get(1..).unwrap_or_default(), row);
            }
        }
        Ok(results)
    }
}

/// All sessions of a model are one.
pub(crate) struct SessionsAreOne;

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

pub(crate) struct IgnoresCancel;

impl Twist for IgnoresCancel {
    fn step(&mut self, inner: &mut Inner, rows: &[Row<'_>], _: &Control<'_>) -> Results {
        inner.step(rows, &Control::default())
    }
}

/// Looks at the step's cancellation alone.
pub(crate) struct IgnoresCancelledRows;

impl Twist for IgnoresCancelledRows {
    fn step(&mut self, inner: &mut Inner, rows: &[Row<'_>], control: &Control<'_>) -> Results {
        let rows: Vec<_> = rows.iter().map(|row| Row::new(row.sequence, row.tokens, row.want)).collect();
        inner.step(&rows, control)
    }
}

/// Takes the cancellation of a row for that of the step.
pub(crate) struct CancelledRowStopsAll;

impl Twist for CancelledRowStopsAll {
    fn step(&mut self, inner: &mut Inner, rows: &[Row<'_>], control: &Control<'_>) -> Results {
        match rows.iter().find_map(|row| row.cancel.filter(|cancel| cancel.is_cancelled())) {
            Some(cancel) => inner.step(rows, &Control::cancelled_by(cancel)),
            None => inner.step(rows, control),
        }
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
        let rows: Vec<_> = rows
            .iter()
            .map(|row| match row.check("step") {
                Ok(()) if !self.steps => Row::new(row.sequence, row.tokens, row.want),
                _ => *row,
            })
            .collect();
        inner.step(&rows, &now)
    }
}

/// Whether a row was answered by an error of this kind.
fn is(kind: ErrorKind, result: &Result<RowResult>) -> bool {
    result.as_ref().is_err_and(|error| error.kind() == kind)
}

/// A cancelled row takes a token back too many.
pub(crate) struct CancelLoses;

impl Twist for CancelLoses {
    fn step(&mut self, inner: &mut Inner, rows: &[Row<'_>], control: &Control<'_>) -> Results {
        let results = inner.step(rows, control)?;
        for (row, _) in rows.iter().zip(&results).filter(|(_, result)| is(ErrorKind::Cancelled, result)) {
            let position = inner.session.state(row.sequence)?.position;
            inner.session.rewind(row.sequence, position.saturating_sub(1))?;
        }
        Ok(results)
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
        let stopped = rows.iter().zip(&results).filter(|(_, result)| is(ErrorKind::Cancelled, result));
        self.sequences.extend(stopped.map(|(row, _)| row.sequence));
        Ok(results)
    }
}

/// Once it was cancelled it stays so.
#[derive(Default)]
pub(crate) struct CancelSticks {
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

pub(crate) struct PoisonStays;

impl Twist for PoisonStays {
    fn close(&mut self, inner: &mut Inner, sequence: SequenceId) -> Result<()> {
        if inner.session.state(sequence)?.poisoned {
            return Err(Error::new(ErrorKind::Poisoned, "close sequence", "it is poisoned"));
        }
        inner.session.close(sequence)
    }
}

/// After an error of a kind, its row or everything that is open says that it is poisoned.
pub(crate) struct Poisons {
    kind: ErrorKind,
    all: bool,
    poisoned: BTreeSet<SequenceId>,
}

impl Poisons {
    pub(crate) fn all_by(kind: ErrorKind) -> Self {
        Self { kind, all: true, poisoned: BTreeSet::new() }
    }

    pub(crate) fn rows_by(kind: ErrorKind) -> Self {
        Self { kind, all: false, poisoned: BTreeSet::new() }
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
        let failed = rows.iter().zip(&results).filter(|(_, result)| is(self.kind, result));
        let failed: Vec<SequenceId> = failed.map(|(row, _)| row.sequence).collect();
        if self.all && !failed.is_empty() {
            let known = (0..64).map(SequenceId::new);
            self.poisoned.extend(known.filter(|id| inner.session.state(*id).is_ok()));
        }
        self.poisoned.extend(failed);
        Ok(results)
    }
}

/// A sequence that there was no memory for moves on all the same.
pub(crate) struct ShortMemoryFeeds;

impl Twist for ShortMemoryFeeds {
    fn step(&mut self, inner: &mut Inner, rows: &[Row<'_>], control: &Control<'_>) -> Results {
        let results = inner.step(rows, control)?;
        for (row, _) in
            rows.iter().zip(&results).filter(|(_, result)| is(ErrorKind::ResourceExhausted, result))
        {
            let fed = Row::extend(row.sequence, row.tokens);
            inner.step(&[fed], control)?;
        }
        Ok(results)
    }
}
