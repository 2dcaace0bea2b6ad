//! The compiled programs of one model, made, or taken from a bundle, as shapes are first needed.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use mlxcel_core::{CancelToken, Error, ErrorKind, FaultPoint, LoadProgress, LoadStage, ProgressFn, Result};
use mlxcel_graph::{
    ENTRY, Prepared, PreparedPrograms, ProgramShape, ProgramTable, ProgramWriter, ResidentArgument,
    Signature, WeightArgument,
};
use mlxcel_iree_kernels::Layouts;
use mlxcel_iree_runtime::{Device, Function, Program};
use mlxcel_iree_target::threads::share_out;

use super::ahead::Ahead;
use super::check_device;
use super::weights::LaidOutWeights;

/// How long after loading something is made that nobody has asked for: the compiler takes time from a program
/// that generates on all cores, and one that ends soon would do it in vain, each time that it runs.
const UNASKED_AFTER: Duration = if cfg!(test) { Duration::ZERO } else { Duration::from_secs(5) };

/// Where the programs of a model come from. It prints as what they were made for.
pub(crate) trait ProgramSource: fmt::Display + Send + Sync {
    /// How all programs take their weights.
    fn layouts(&self) -> Result<Layouts>;

    /// The weights as the programs take them, where they lie like that already; they are `weights`.
    fn laid_out(&self, weights: &[WeightArgument]) -> Result<Option<LaidOutWeights>>;

    /// Whether compiling may take so long that progress is reported.
    fn takes_long(&self) -> bool;

    /// The program that [checks](super::check_device) an accelerator.
    fn device_check(&self, cancel: Option<&CancelToken>) -> Result<Cow<'static, [u8]>>;

    /// The program for `shape`.
    fn program(&self, shape: &ProgramShape, cancel: Option<&CancelToken>) -> Result<Made>;
}

/// A program as the runtime loads it, and what it took to get it.
pub(crate) struct Made {
    /// The artifact.
    pub(crate) vmfb: Cow<'static, [u8]>,
    /// How long it took to compile; nothing where that was done before.
    pub(crate) compile_time: Duration,
}

/// A program on the device, what it is for, and what it takes and gives.
#[derive(Clone)]
pub(crate) struct IreeProgram {
    pub(super) function: Function,
    pub(super) shape: ProgramShape,
    pub(super) signature: Arc<Signature>,
}

/// The programs of one model on one device.
pub(crate) struct Programs {
    making: Arc<Making>,
    ahead: Ahead<ProgramShape>,
}

impl Programs {
    pub(crate) fn new(
        device: Device,
        source: Box<dyn ProgramSource>,
        writer: ProgramWriter,
        progress: Option<ProgressFn>,
    ) -> Self {
        let making = Arc::new(Making { device, source, writer, progress, table: ProgramTable::default() });
        let ahead = Ahead::new({
            let making = Arc::clone(&making);
            move |shape, cancel| making.make_once(shape, Some(cancel), &|_| {}).map(drop)
        });
        Self { making, ahead }
    }

    /// How all programs take their weights.
    ///
    /// # Errors
    ///
    /// Those of the source.
    pub(crate) fn layouts(&self) -> Result<Layouts> {
        self.making.source.layouts()
    }

    /// Checks an accelerator by a computation with known results.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`](mlxcel_core::ErrorKind::Device) if it computes wrong numbers; those of the
    /// source.
    pub(crate) fn check_device(&self, cancel: Option<&CancelToken>) -> Result<()> {
        let Making { device, source, .. } = &*self.making;
        if device.is_accelerator() { check_device(device, &source.device_check(cancel)?) } else { Ok(()) }
    }

    /// The tensors of the weights that all programs take.
    pub(crate) fn weights(&self) -> &[WeightArgument] {
        &self.making.writer.weights
    }

    /// The tensors that all programs take and the host rewrites.
    pub(super) fn residents(&self) -> Arc<[ResidentArgument]> {
        Arc::clone(&self.making.writer.residents)
    }

    /// The weights as all programs take them, where they lie like that already.
    ///
    /// # Errors
    ///
    /// Those of the source.
    pub(crate) fn laid_out(&self) -> Result<Option<LaidOutWeights>> {
        self.making.source.laid_out(self.weights())
    }

    /// The program for `shape`, made if it is not there, and how long it took to compile.
    pub(super) fn prepare(
        &self,
        shape: &ProgramShape,
        cancel: Option<&CancelToken>,
    ) -> Result<Prepared<IreeProgram>> {
        match self.making.table.ready(shape) {
            Some(program) => Ok(Prepared { program, compile_time: Duration::ZERO }),
            None => self.making.make_once(shape, cancel, &|done| self.making.report(done, 1)),
        }
    }

    /// Makes the programs that loading waits for, with `load_weights` beside that, and announces the others.
    /// Returns how long compiling took if anything was compiled, and the weights.
    pub(crate) fn prepare_for_load<W: Send>(
        &self,
        prepared: &PreparedPrograms,
        cancel: Option<&CancelToken>,
        load_weights: impl FnOnce() -> Result<W> + Send,
    ) -> Result<(Duration, W)> {
        let mut weights = None;
        let beside = Box::new(|| {
            weights = Some(load_weights()?);
            Ok(())
        });
        let compile_time = self.prepare_parallel(&prepared.at_load, cancel, Some(beside))?;
        self.ahead.make_later(&prepared.in_background, UNASKED_AFTER);
        let missing = || Error::new(ErrorKind::Internal, "load weights", "the weights were not loaded");
        Ok((compile_time, weights.ok_or_else(missing)?))
    }

    /// Makes the missing programs, in parallel on several cores, and returns how long that took if anything
    /// was compiled.
    pub(super) fn prepare_together(
        &self,
        shapes: &[ProgramShape],
        cancel: Option<&CancelToken>,
    ) -> Result<Duration> {
        self.prepare_parallel(shapes, cancel, None)
    }

    /// [`prepare_together`](Self::prepare_together), with `beside` done at the same time.
    fn prepare_parallel(
        &self,
        shapes: &[ProgramShape],
        cancel: Option<&CancelToken>,
        beside: Option<Work<'_>>,
    ) -> Result<Duration> {
        let started = Instant::now();
        let cores = thread::available_parallelism().map_or(1, usize::from);
        // What goes on beside the compiler waits for the disk and for memory too.
        let threads = cores + usize::from(beside.is_some());
        let missing = shapes.iter().filter(|shape| self.making.table.ready(shape).is_none());
        let missing: Vec<_> = missing.collect();
        let total = missing.len() as u64;
        let done = Mutex::new(0);
        let report = |finished: u64| {
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            *done += finished;
            self.making.report(*done, total);
        };
        let compiled = Mutex::new(Duration::ZERO);
        let program = |shape| -> Result<()> {
            let made = self.making.make_once(shape, cancel, &report)?;
            if !made.compile_time.is_zero() {
                *compiled.lock().unwrap_or_else(PoisonError::into_inner) = started.elapsed();
            }
            Ok(())
        };
        let program = &program;
        let programs = missing.into_iter().map(|shape| -> Work<'_> { Box::new(move || program(shape)) });
        let work: Vec<_> = beside.into_iter().chain(programs).collect();
        if work.is_empty() {
            return Ok(Duration::ZERO);
        }
        share_out("prepare programs", threads, work, |work| work())?;
        Ok(compiled.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether the program for `shape` is there.
    pub(super) fn is_ready(&self, shape: &ProgramShape) -> bool {
        self.making.table.ready(shape).is_some()
    }

    /// Whether the program for `shape` is there; else it is made at some time, on a thread that gives way to
    /// others. What fails is left to [`prepare`](Self::prepare).
    pub(super) fn prepare_ahead(&self, shape: &ProgramShape) -> bool {
        let is_ready = self.is_ready(shape);
        if !is_ready {
            self.ahead.make(shape);
        }
        is_ready
    }
}

/// A part of what is prepared.
type Work<'a> = Box<dyn FnOnce() -> Result<()> + Send + 'a>;

/// What makes programs, and what it has made.
struct Making {
    device: Device,
    source: Box<dyn ProgramSource>,
    /// Knows the signatures of programs.
    writer: ProgramWriter,
    progress: Option<ProgressFn>,
    table: ProgramTable<IreeProgram>,
}

impl Making {
    /// The program for `shape`, made if it is missing, or awaited if another thread makes it, and how long it
    /// took to compile here; `report` is called with 0 before and 1 after.
    fn make_once(
        &self,
        shape: &ProgramShape,
        cancel: Option<&CancelToken>,
        report: &dyn Fn(u64),
    ) -> Result<Prepared<IreeProgram>> {
        let takes_long = self.source.takes_long();
        if takes_long {
            report(0);
        }
        let made = self.table.get_or_make(shape, cancel, || self.make(shape, cancel))?;
        if takes_long {
            report(1);
        }
        Ok(made)
    }

    fn report(&self, done: u64, total: u64) {
        if let Some(progress) = &self.progress {
            progress(LoadProgress::new(LoadStage::Compile, done, total));
        }
    }

    fn make(&self, shape: &ProgramShape, cancel: Option<&CancelToken>) -> Result<Prepared<IreeProgram>> {
        self.device.check_fault(FaultPoint::Compile, "compile program")?;
        let Made { vmfb, compile_time } = self.source.program(shape, cancel)?;
        let function = Program::load(&self.device, &vmfb)?.function(ENTRY)?;
        let signature = Arc::new(self.writer.signature(shape));
        let program = IreeProgram { function, shape: shape.clone(), signature };
        Ok(Prepared { program, compile_time })
    }
}
