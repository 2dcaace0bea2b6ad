//! The programs of a model, of which several sessions may want one at once and one of them makes it.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mlxcel_core::{CancelToken, Error, ErrorKind, Result};

use crate::executor::Prepared;
use crate::shape::ProgramShape;

/// How often a thread that waits for a program checks for cancellation.
const GLANCE: Duration = Duration::from_millis(20);

/// Programs by their shapes, each made once, when it is first needed: what executors that compile keep theirs
/// in.
#[derive(Debug)]
pub struct ProgramTable<P>(Mutex<HashMap<ProgramShape, Arc<Slot<P>>>>);

impl<P> Default for ProgramTable<P> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<P: Clone> ProgramTable<P> {
    /// The program for `shape`, if it is there.
    pub fn ready(&self, shape: &ProgramShape) -> Option<P> {
        match &*self.slot(shape).state() {
            State::Ready(program) => Some(program.clone()),
            _ => None,
        }
    }

    /// The program for `shape`: the one that is there, or what `make` gives. Waits while another thread makes
    /// it; if that failed, `make` is called here.
    ///
    /// # Errors
    ///
    /// Those of `make`, and [`ErrorKind::Cancelled`] while waiting; both name the program.
    pub fn get_or_make(
        &self,
        shape: &ProgramShape,
        cancel: Option<&CancelToken>,
        make: impl FnOnce() -> Result<Prepared<P>>,
    ) -> Result<Prepared<P>> {
        let slot = self.slot(shape);
        let made = match slot.claim(cancel) {
            Ok(Claimed::Ready(program)) => Ok(Prepared { program, compile_time: Duration::ZERO }),
            Ok(Claimed::Make(claim)) => make().inspect(|made| claim.fill(made.program.clone())),
            Err(error) => Err(error),
        };
        made.map_err(|error| error.with_context("program", shape))
    }

    fn slot(&self, shape: &ProgramShape) -> Arc<Slot<P>> {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(slots.entry(shape.clone()).or_default())
    }
}

/// A place for the program of one shape.
#[derive(Debug)]
struct Slot<P> {
    state: Mutex<State<P>>,
    changed: Condvar,
}

impl<P> Default for Slot<P> {
    fn default() -> Self {
        Self { state: Mutex::new(State::Empty), changed: Condvar::new() }
    }
}

#[derive(Debug)]
enum State<P> {
    /// It has not been made, or making it failed.
    Empty,
    /// A thread is making it.
    Making,
    Ready(P),
}

impl<P: Clone> Slot<P> {
    /// The program, or the right to make it; waits while another thread has that right.
    fn claim(&self, cancel: Option<&CancelToken>) -> Result<Claimed<'_, P>> {
        let mut state = self.state();
        loop {
            match &*state {
                State::Ready(program) => return Ok(Claimed::Ready(program.clone())),
                State::Empty => {
                    *state = State::Making;
                    return Ok(Claimed::Make(Claim(self)));
                }
                State::Making if cancel.is_some_and(CancelToken::is_cancelled) => {
                    let message = "the operation was cancelled";
                    return Err(Error::new(ErrorKind::Cancelled, "wait for a program", message));
                }
                State::Making => {
                    let waited = self.changed.wait_timeout(state, GLANCE);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }
}

impl<P> Slot<P> {
    fn state(&self) -> MutexGuard<'_, State<P>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, state: State<P>) {
        *self.state() = state;
        self.changed.notify_all();
    }
}

/// The result of requesting a program.
enum Claimed<'a, P> {
    Ready(P),
    Make(Claim<'a, P>),
}

/// The right to make a program; if it is dropped unused, another thread gets it.
struct Claim<'a, P>(&'a Slot<P>);

impl<P> Claim<'_, P> {
    fn fill(&self, program: P) {
        self.0.set(State::Ready(program));
    }
}

impl<P> Drop for Claim<'_, P> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        if matches!(*state, State::Making) {
            *state = State::Empty;
        }
        drop(state);
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;
    use crate::shape::Outputs;

    #[test]
    fn waiting_for_a_program_can_be_cancelled_and_is_retried_after_a_failure() {
        let slot = Slot::<()>::default();
        let is_claim = |turn: Claimed<'_, ()>| matches!(turn, Claimed::Make(_));
        let Claimed::Make(claim) = slot.claim(None).unwrap() else { panic!("nobody has made it") };
        let cancel = CancelToken::new();
        thread::scope(|scope| {
            let (sender, cancelled) = mpsc::channel();
            let (slot, cancel) = (&slot, &cancel);
            scope.spawn(move || sender.send(slot.claim(Some(cancel)).map(is_claim)).unwrap());
            assert!(cancelled.recv_timeout(Duration::from_millis(100)).is_err(), "it waits");
            cancel.cancel();
            let answer = cancelled.recv_timeout(Duration::from_secs(10)).unwrap();
            assert_eq!(answer.unwrap_err().kind(), ErrorKind::Cancelled);

            let waiting = scope.spawn(|| slot.claim(None).map(is_claim));
            drop(claim);
            assert!(waiting.join().unwrap().unwrap());
        });
    }

    #[test]
    fn programs_are_compiled_once_and_retried_after_a_failure() {
        let table = ProgramTable::<u32>::default();
        let shape = ProgramShape { rows: vec![1], length: 256, outputs: Outputs::Last };
        let failed = || Err(Error::new(ErrorKind::Compile, "compile program", "no"));
        let error = table.get_or_make(&shape, None, failed).unwrap_err();
        assert_eq!((error.kind(), error.context("program")), (ErrorKind::Compile, Some("1@256")));
        assert_eq!(table.ready(&shape), None);
        let compile_time = Duration::from_secs(1);
        let made = table.get_or_make(&shape, None, || Ok(Prepared { program: 7, compile_time })).unwrap();
        assert_eq!((made.program, made.compile_time), (7, compile_time));
        let again = table.get_or_make(&shape, None, || unreachable!("it is there")).unwrap();
        assert_eq!((again.program, again.compile_time), (7, Duration::ZERO));
        assert_eq!(table.ready(&shape), Some(7));
    }
}
