//! A place for one program, which several sessions may want at once and one of them makes.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mlxcel_core::{CancelToken, Error, ErrorKind, Result};

use super::programs::IreeProgram;

/// How long somebody who waits for a program goes without looking whether that was cancelled.
const GLANCE: Duration = Duration::from_millis(20);

/// A place for the program of one shape, which is made once.
#[derive(Default)]
pub(super) struct Slot {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
enum State {
    /// Nobody has made it, or whoever tried has failed.
    #[default]
    Empty,
    /// Somebody is making it.
    Making,
    Ready(IreeProgram),
}

impl Slot {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, state: State) {
        *self.state() = state;
        self.changed.notify_all();
    }

    /// The program, once it is there.
    pub(super) fn ready(&self) -> Option<IreeProgram> {
        match &*self.state() {
            State::Ready(program) => Some(program.clone()),
            _ => None,
        }
    }

    /// The program, or the right to make it; waits while somebody else has that.
    pub(super) fn claim(&self, cancel: Option<&CancelToken>) -> Result<Claimed<'_>> {
        let mut state = self.state();
        loop {
            match &*state {
                State::Ready(program) => return Ok(Claimed::Ready(program.clone())),
                State::Empty => {
                    *state = State::Making;
                    return Ok(Claimed::Make(Claim(self)));
                }
                State::Making if cancel.is_some_and(CancelToken::is_cancelled) => {
                    let message = "the work was cancelled";
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

/// What somebody who needs a program gets.
pub(super) enum Claimed<'a> {
    Ready(IreeProgram),
    Make(Claim<'a>),
}

/// The right to make a program; where it is not used, somebody else gets it.
pub(super) struct Claim<'a>(&'a Slot);

impl Claim<'_> {
    pub(super) fn fill(self, program: IreeProgram) {
        self.0.set(State::Ready(program));
    }
}

impl Drop for Claim<'_> {
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

    #[test]
    fn whoever_waits_for_a_program_can_be_cancelled_and_gets_it_where_making_it_failed() {
        let slot = Slot::default();
        let is_claim = |turn: Claimed<'_>| matches!(turn, Claimed::Make(_));
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
}
