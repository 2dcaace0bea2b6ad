//! The compiled programs of one model, made as shapes are first needed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mlxcel_core::{CancelToken, Error, ErrorKind, LoadProgress, LoadStage, ProgressFn, Result};
use mlxcel_graph::{ENTRY, Numerics, ProgramShape, decoder_program};
use mlxcel_models::Decoder;

use crate::artifact::Artifacts;
use crate::backend::ResolvedTarget;
use crate::compiler::CompileOptions;
use crate::ffi::{Device, Function, Program};
use crate::lowering::lower_for_cpu;

/// A place for the program of one shape: locked while it is made, so that it is made once.
type Slot = Arc<Mutex<Option<Function>>>;

/// The programs of one model on one device.
pub(super) struct Programs {
    device: Device,
    decoder: Decoder,
    numerics: Numerics,
    target: ResolvedTarget,
    artifacts: Artifacts,
    progress: Option<ProgressFn>,
    slots: Mutex<HashMap<ProgramShape, Slot>>,
}

impl Programs {
    pub(super) fn new(
        device: Device,
        decoder: Decoder,
        numerics: Numerics,
        target: ResolvedTarget,
        artifacts: Artifacts,
        progress: Option<ProgressFn>,
    ) -> Self {
        Self { device, decoder, numerics, target, artifacts, progress, slots: Mutex::default() }
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
        report(0);
        let (made, time) = self.make(shape, cancel).map_err(|error| error.with_context("program", shape))?;
        *function = Some(made);
        report(1);
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
        let program = decoder_program(&self.decoder, self.numerics, shape)?;
        let text = lower_for_cpu(&program.module)?;
        let options = CompileOptions::new(self.target.clone()).with_label(shape.to_string());
        let artifact = self.artifacts.get(&text, &options, cancel)?;
        let time = if artifact.compiled { artifact.elapsed } else { Duration::ZERO };
        tracing::debug!(program = %shape, compiled = artifact.compiled, seconds = artifact.elapsed.as_secs_f64(), "ready");
        let function = Program::load(&self.device, &artifact.bytes)?.function(ENTRY)?;
        Ok((function, time))
    }
}
