//! The compiled programs of one model, made, or taken from a bundle, as shapes are first needed.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mlxcel_core::{CancelToken, Error, ErrorKind, LoadProgress, LoadStage, ProgressFn, Result};
use mlxcel_graph::{ENTRY, ProgramShape};

use super::compile::ProgramCompiler;
use crate::bundle::BundledPrograms;
use crate::ffi::{Device, Function, Program};
use crate::lowering::weight_lanes;
use crate::threads::share_out;

/// How long somebody who waits for a program goes without looking whether that was cancelled.
const GLANCE: Duration = Duration::from_millis(20);

/// A place for the program of one shape, which is made once.
#[derive(Default)]
struct Slot {
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
    Ready(Function),
}

impl Slot {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, state: State) {
        *self.state() = state;
        self.changed.notify_all();
    }

    /// The right to make the program, or none where it is there; waits while somebody else has it.
    fn claim(&self, cancel: Option<&CancelToken>) -> Result<Option<Claim<'_>>> {
        let mut state = self.state();
        loop {
            match *state {
                State::Ready(_) => return Ok(None),
                State::Empty => {
                    *state = State::Making;
                    return Ok(Some(Claim(self)));
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

/// The right to make a program; where it is not used, somebody else gets it.
struct Claim<'a>(&'a Slot);

impl Claim<'_> {
    fn fill(self, function: Function) {
        self.0.set(State::Ready(function));
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

/// Where compiled programs come from.
pub(super) enum ProgramSource {
    /// The compiler, or what it once made.
    Compiler(Box<ProgramCompiler>),
    /// A bundle, which has all that there will be.
    Bundle(Box<BundledPrograms>),
}

impl ProgramSource {
    /// The lanes of the panels in which the programs take weights; none where they take them as stored.
    pub(super) fn lanes(&self) -> Result<Option<usize>> {
        match self {
            Self::Compiler(compiler) => weight_lanes(compiler.target()),
            Self::Bundle(programs) => programs.lanes(),
        }
    }
}

impl fmt::Display for ProgramSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Compiler(compiler) => write!(f, "compiled for {}", compiler.target()),
            Self::Bundle(programs) => write!(f, "bundled for {}", programs.name()),
        }
    }
}

/// The programs of one model on one device.
pub(super) struct Programs {
    device: Device,
    source: ProgramSource,
    progress: Option<ProgressFn>,
    slots: Mutex<HashMap<ProgramShape, Arc<Slot>>>,
}

impl Programs {
    pub(super) fn new(device: Device, source: ProgramSource, progress: Option<ProgressFn>) -> Self {
        Self { device, source, progress, slots: Mutex::default() }
    }

    /// The program for `shape`, which [`prepare`](Self::prepare) has made.
    pub(super) fn get(&self, shape: &ProgramShape) -> Result<Function> {
        match &*self.slot(shape).state() {
            State::Ready(function) => Ok(function.clone()),
            _ => Err(Error::new(ErrorKind::Internal, "run program", "the program was not prepared")
                .with_context("shape", shape)),
        }
    }

    /// Makes the program for `shape` unless it is there, and tells how long compiling took.
    pub(super) fn prepare(&self, shape: &ProgramShape, cancel: Option<&CancelToken>) -> Result<Duration> {
        self.make_once(shape, cancel, &|done| self.report(done, 1))
    }

    /// Makes the program for `shape` unless it is there; `report` is told 0 before and 1 after.
    fn make_once(
        &self,
        shape: &ProgramShape,
        cancel: Option<&CancelToken>,
        report: &dyn Fn(u64),
    ) -> Result<Duration> {
        let slot = self.slot(shape);
        let Some(claim) = slot.claim(cancel).map_err(|error| error.with_context("program", shape))? else {
            return Ok(Duration::ZERO);
        };
        let compiles = matches!(self.source, ProgramSource::Compiler(_));
        if compiles {
            report(0);
        }
        let (made, time) = self.make(shape, cancel).map_err(|error| error.with_context("program", shape))?;
        claim.fill(made);
        if compiles {
            report(1);
        }
        Ok(time)
    }

    /// Makes several programs side by side, and tells how long that took where anything was compiled.
    pub(super) fn prepare_all(
        &self,
        shapes: &[ProgramShape],
        cancel: Option<&CancelToken>,
    ) -> Result<Duration> {
        let started = Instant::now();
        let total = shapes.len() as u64;
        let done = Mutex::new(0);
        let report = |finished: u64| {
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            *done += finished;
            self.report(*done, total);
        };
        let compiled = AtomicBool::new(false);
        share_out(shapes.len(), shapes.iter().collect(), |shape| {
            let time = self.make_once(shape, cancel, &report)?;
            compiled.fetch_or(!time.is_zero(), Ordering::Relaxed);
            Ok(())
        })?;
        Ok(if compiled.into_inner() { started.elapsed() } else { Duration::ZERO })
    }

    fn report(&self, done: u64, total: u64) {
        if let Some(progress) = &self.progress {
            progress(LoadProgress::new(LoadStage::Compile, done, total));
        }
    }

    fn slot(&self, shape: &ProgramShape) -> Arc<Slot> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(slots.entry(shape.clone()).or_default())
    }

    fn make(&self, shape: &ProgramShape, cancel: Option<&CancelToken>) -> Result<(Function, Duration)> {
        let (vmfb, time) = match &self.source {
            ProgramSource::Compiler(compiler) => {
                let artifact = compiler.compile(shape, cancel)?;
                let time = if artifact.compiled { artifact.elapsed } else { Duration::ZERO };
                (Cow::Owned(artifact.bytes), time)
            }
            ProgramSource::Bundle(programs) => (programs.vmfb(shape)?, Duration::ZERO),
        };
        Ok((Program::load(&self.device, &vmfb)?.function(ENTRY)?, time))
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
        let claim = slot.claim(None).unwrap().unwrap();
        let cancel = CancelToken::new();
        thread::scope(|scope| {
            let (sender, cancelled) = mpsc::channel();
            let (slot, cancel) = (&slot, &cancel);
            scope.spawn(move || sender.send(slot.claim(Some(cancel)).map(|claim| claim.is_some())).unwrap());
            assert!(cancelled.recv_timeout(Duration::from_millis(100)).is_err(), "it waits");
            cancel.cancel();
            let answer = cancelled.recv_timeout(Duration::from_secs(10)).unwrap();
            assert_eq!(answer.unwrap_err().kind(), ErrorKind::Cancelled);

            let waiting = scope.spawn(|| slot.claim(None).map(|claim| claim.is_some()));
            drop(claim);
            assert!(waiting.join().unwrap().unwrap());
        });
    }
}
