//! The compiled programs of one model, made, or taken from a bundle, as shapes are first needed.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mlxcel_core::{CancelToken, Error, ErrorKind, LoadProgress, LoadStage, ProgressFn, Result};
use mlxcel_graph::{ENTRY, ProgramShape};

use super::compile::ProgramCompiler;
use crate::bundle::BundledPrograms;
use crate::ffi::{Device, Function, Program};
use crate::lowering::weight_lanes;

/// A place for the program of one shape: locked while it is made, so that it is made once.
type Slot = Arc<Mutex<Option<Function>>>;

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
    slots: Mutex<HashMap<ProgramShape, Slot>>,
}

impl Programs {
    pub(super) fn new(device: Device, source: ProgramSource, progress: Option<ProgressFn>) -> Self {
        Self { device, source, progress, slots: Mutex::default() }
    }

    /// The program for `shape`, which [`prepare`](Self::prepare) has made.
    pub(super) fn get(&self, shape: &ProgramShape) -> Result<Function> {
        let slot = self.slot(shape);
        let function = slot.lock().unwrap_or_else(PoisonError::into_inner).clone();
        function.ok_or_else(|| {
            Error::new(ErrorKind::Internal, "run program", "the program was not prepared")
                .with_context("shape", shape)
        })
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
        let mut function = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if function.is_some() {
            return Ok(Duration::ZERO);
        }
        let compiles = matches!(self.source, ProgramSource::Compiler(_));
        if compiles {
            report(0);
        }
        let (made, time) = self.make(shape, cancel).map_err(|error| error.with_context("program", shape))?;
        *function = Some(made);
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
        let results: Vec<Result<Duration>> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                shapes.iter().map(|shape| scope.spawn(|| self.make_once(shape, cancel, &report))).collect();
            let crashed = || Err(Error::new(ErrorKind::Internal, "compile program", "a thread panicked"));
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| crashed())).collect()
        });
        let compiled =
            results.into_iter().try_fold(false, |any, time| Ok::<_, Error>(any | !time?.is_zero()))?;
        Ok(if compiled { started.elapsed() } else { Duration::ZERO })
    }

    fn report(&self, done: u64, total: u64) {
        if let Some(progress) = &self.progress {
            progress(LoadProgress::new(LoadStage::Compile, done, total));
        }
    }

    fn slot(&self, shape: &ProgramShape) -> Slot {
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
