//! Fault injection into executors.

use std::time::Duration;

use mlxcel_core::{CancelToken, FaultPoint, Faults, Result};

use crate::executor::{Executor, Prepared, RunError, StepInputs, StepOutputs};
use crate::shape::ProgramShape;
use crate::state::StateLayout;

/// Wraps an executor and injects [`Faults`], for the tests of engines whose device does not fail on demand.
///
/// [`Executor::prepare`] and [`Executor::prepare_together`] compile; states and a run's inputs are
/// allocations; a run dispatches and reads back; [`Executor::copy`],
/// [`Executor::write`] and [`Executor::write_resident`] copy; [`Executor::read`] reads back.
#[derive(Debug)]
pub struct FaultyExecutor<E> {
    executor: E,
    faults: Faults,
}

impl<E> FaultyExecutor<E> {
    /// Wraps `executor` with fault injection by `faults`.
    pub fn new(executor: E, faults: Faults) -> Self {
        Self { executor, faults }
    }
}

impl<E: Executor> Executor for FaultyExecutor<E> {
    type State = E::State;
    type Program = E::Program;

    fn prepare(&self, shape: &ProgramShape, cancel: Option<&CancelToken>) -> Result<Prepared<E::Program>> {
        self.faults.check(FaultPoint::Compile, "compile program")?;
        self.executor.prepare(shape, cancel)
    }

    fn prepare_together(&self, shapes: &[ProgramShape], cancel: Option<&CancelToken>) -> Result<Duration> {
        self.faults.check(FaultPoint::Compile, "compile program")?;
        self.executor.prepare_together(shapes, cancel)
    }

    fn prepare_ahead(&self, shape: &ProgramShape) -> bool {
        self.executor.prepare_ahead(shape)
    }

    fn is_ready(&self, shape: &ProgramShape) -> bool {
        self.executor.is_ready(shape)
    }

    fn allocate(&self, layout: &StateLayout, length: usize) -> Result<E::State> {
        self.faults.check(FaultPoint::Allocation, "allocate state")?;
        self.executor.allocate(layout, length)
    }

    fn copy(
        &self,
        layout: &StateLayout,
        from: (&E::State, usize),
        to: (&mut E::State, usize),
        positions: usize,
    ) -> Result<()> {
        self.faults.check(FaultPoint::Copy, "copy state")?;
        self.executor.copy(layout, from, to, positions)
    }

    fn read(
        &self,
        layout: &StateLayout,
        state: &E::State,
        length: usize,
        positions: usize,
    ) -> Result<Vec<u8>> {
        self.faults.check(FaultPoint::ReadBack, "read state")?;
        self.executor.read(layout, state, length, positions)
    }

    fn write(
        &self,
        layout: &StateLayout,
        state: &mut E::State,
        length: usize,
        positions: usize,
        bytes: &[u8],
    ) -> Result<()> {
        self.faults.check(FaultPoint::Copy, "write state")?;
        self.executor.write(layout, state, length, positions, bytes)
    }

    fn write_resident(&self, argument: usize, slot: usize, bytes: &[u8]) -> Result<()> {
        self.faults.check(FaultPoint::Copy, "write resident")?;
        self.executor.write_resident(argument, slot, bytes)
    }

    fn run(
        &self,
        program: &E::Program,
        inputs: &StepInputs,
        states: &mut [&mut [E::State]],
        wanted: &[usize],
    ) -> Result<StepOutputs, RunError> {
        self.faults.check(FaultPoint::Allocation, "upload inputs").map_err(RunError::before)?;
        self.faults.check(FaultPoint::Dispatch, "run program")?;
        let outputs = self.executor.run(program, inputs, states, wanted)?;
        self.faults.check(FaultPoint::ReadBack, "read results")?;
        Ok(outputs)
    }
}
