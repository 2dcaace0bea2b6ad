//! Running decoder programs on an IREE device.

use std::time::Duration;

use mlxcel_core::{CancelToken, Error, ErrorKind, Result};
use mlxcel_graph::{
    Executor, Prepared, ProgramShape, ResultMeaning, RunError, Signature, StateLayout, StepInputs,
    StepOutputs,
};
use mlxcel_iree_runtime::{ALIGNMENT, Argument, Buffer, CallError, Constants, Device, copying_threads};
use mlxcel_iree_target::threads::share_out;
use mlxcel_stablehlo::TensorType;

use super::programs::{IreeProgram, Programs};
use super::residents::ResidentTensors;
use crate::profile::Profiler;

/// A device with a model's programs and weights on it.
pub(crate) struct IreeExecutor {
    device: Device,
    programs: Programs,
    weights: Constants,
    residents: ResidentTensors,
    profiler: Option<Profiler>,
}

/// What one group of layers keeps of a sequence.
pub(crate) struct IreeState {
    buffer: Buffer,
    ty: TensorType,
}

#[cfg(feature = "compile")]
#[cfg(test)]
impl IreeState {
    pub(super) fn buffer(&self) -> &Buffer {
        &self.buffer
    }
}

impl IreeExecutor {
    /// Programs and weights on `device`; residents are zero.
    ///
    /// # Errors
    ///
    /// Those of the programs' source, and of allocating residents.
    pub(crate) fn new(device: Device, programs: Programs, weights: Constants) -> Result<Self> {
        let residents = ResidentTensors::new(&device, programs.residents(), &programs.layouts()?)?;
        Ok(Self { device, programs, weights, residents, profiler: None })
    }

    /// Has its passes noted by `profiler`; the device must have been opened for it.
    pub(crate) fn with_profiler(mut self, profiler: Option<Profiler>) -> Self {
        self.profiler = profiler;
        self
    }
}

impl Executor for IreeExecutor {
    type State = IreeState;
    type Program = IreeProgram;

    fn prepare(&self, shape: &ProgramShape, cancel: Option<&CancelToken>) -> Result<Prepared<IreeProgram>> {
        self.programs.prepare(shape, cancel)
    }

    fn prepare_together(&self, shapes: &[ProgramShape], cancel: Option<&CancelToken>) -> Result<Duration> {
        self.programs.prepare_together(shapes, cancel)
    }

    fn prepare_ahead(&self, shape: &ProgramShape) -> bool {
        self.programs.prepare_ahead(shape)
    }

    fn is_ready(&self, shape: &ProgramShape) -> bool {
        self.programs.is_ready(shape)
    }

    fn allocate(&self, layout: &StateLayout, length: usize) -> Result<IreeState> {
        let ty = layout.tensor_type(length);
        Ok(IreeState { buffer: self.device.allocate(ty.bytes())?, ty })
    }

    fn state_bytes(&self, layout: &StateLayout, length: usize, written: usize) -> usize {
        match self.device.page_of(layout.bytes(length)) {
            Some(page) => layout.bytes_written(length, written, page),
            None => layout.bytes(length),
        }
    }

    fn copy(
        &self,
        layout: &StateLayout,
        (from, from_length): (&IreeState, usize),
        (to, to_length): (&mut IreeState, usize),
        positions: usize,
    ) -> Result<()> {
        let parts: Vec<_> = layout.copy_segments(from_length, to_length, positions).collect();
        let bytes = parts.iter().map(|part| part.bytes).sum();
        let threads = if self.device.is_accelerator() { 1 } else { copying_threads(bytes) };
        share_out("copy a state", threads, parts, |part| {
            from.buffer.copy_to(part.from, &to.buffer, part.to, part.bytes)
        })
    }

    fn read(
        &self,
        layout: &StateLayout,
        state: &IreeState,
        length: usize,
        positions: usize,
    ) -> Result<Vec<u8>> {
        let size = layout.bytes(positions);
        let bytes = bytemuck::allocation::try_zeroed_slice_box(size);
        let mut bytes: Box<[u8]> = bytes.map_err(|()| Error::out_of_memory("read state", size))?;
        for part in layout.copy_segments(length, positions, positions) {
            state.buffer.read(part.from, &mut bytes[part.to..part.to + part.bytes])?;
        }
        Ok(bytes.into_vec())
    }

    fn write(
        &self,
        layout: &StateLayout,
        state: &mut IreeState,
        length: usize,
        positions: usize,
        bytes: &[u8],
    ) -> Result<()> {
        layout
            .copy_segments(positions, length, positions)
            .try_for_each(|part| state.buffer.write(part.to, &bytes[part.from..part.from + part.bytes]))
    }

    fn write_resident(&self, argument: usize, slot: usize, bytes: &[u8]) -> Result<()> {
        self.residents.write(argument, slot, bytes)
    }

    fn run(
        &self,
        program: &IreeProgram,
        inputs: &StepInputs,
        states: &mut [&mut [IreeState]],
        wanted: &[usize],
    ) -> Result<StepOutputs, RunError> {
        let mut pass = || self.pass(program, inputs, states, wanted);
        match &self.profiler {
            None => pass(),
            Some(profiler) => profiler.pass(&self.device, &program.shape, pass),
        }
    }
}

impl IreeExecutor {
    fn pass(
        &self,
        IreeProgram { function, shape, signature }: &IreeProgram,
        inputs: &StepInputs,
        states: &mut [&mut [IreeState]],
        wanted: &[usize],
    ) -> Result<StepOutputs, RunError> {
        let (step, offsets) = self.upload(inputs, signature).map_err(RunError::before)?;
        let residents = self.residents.current();
        let count = residents.len() + signature.inputs.len() + signature.states.len();
        let mut arguments = Vec::with_capacity(count);
        for (argument, buffer) in signature.residents.iter().zip(residents.iter()) {
            arguments.push(Argument::new(buffer, &argument.ty.shape, argument.ty.element));
        }
        for (argument, offset) in signature.inputs.iter().zip(offsets) {
            let (shape, element) = (&argument.ty.shape[..], argument.ty.element);
            arguments.push(Argument { buffer: &step, offset, shape, element });
        }
        for argument in &signature.states {
            let state = states.get(argument.state.row).and_then(|row| row.get(argument.state.group));
            let state = state.ok_or_else(|| RunError::before(missing_state(&argument.name)))?;
            arguments.push(Argument::new(&state.buffer, &state.ty.shape, state.ty.element));
        }
        let called = function.invoke(&self.weights, &arguments);
        let results = called.map_err(run_error)?;
        if results.len() != signature.results.len() {
            let message = "the program returns another number of results than its signature";
            return Err(Error::new(ErrorKind::Internal, "run program", message).into());
        }
        let mut outputs = StepOutputs::default();
        for (described, result) in signature.results.iter().zip(results) {
            if result.ty != described.ty {
                let message = "a result of the program has another type than in its signature";
                return Err(Error::new(ErrorKind::Internal, "run program", message)
                    .with_context("result", described.meaning)
                    .with_context("type", result.ty)
                    .into());
            }
            match described.meaning {
                ResultMeaning::Best => {
                    let mut words = vec![0u32; described.ty.elements()];
                    result.buffer.read(0, bytemuck::cast_slice_mut(&mut words))?;
                    outputs.best = StepOutputs::decode_best(&words);
                }
                ResultMeaning::Logits | ResultMeaning::Hidden => {
                    outputs.values = rows(&result.buffer, described.ty.shape[1], wanted)?;
                }
                ResultMeaning::States => {
                    outputs.states = vec![0f32; described.ty.elements()];
                    result.buffer.read(0, bytemuck::cast_slice_mut(&mut outputs.states))?;
                }
                ResultMeaning::State(whose) => {
                    let state = states.get_mut(whose.row).and_then(|row| row.get_mut(whose.group));
                    let state = state.ok_or_else(|| missing_state(&whose.to_string()))?;
                    // Right either way, but a copy of the state in every step would be worth knowing.
                    if !result.buffer.shares_storage_with(&state.buffer) {
                        tracing::debug!(program = %shape, "a state was copied instead of updated in place");
                    }
                    state.buffer = result.buffer;
                }
            }
        }
        Ok(outputs)
    }

    /// Sends a step's small inputs to the device in one go; where each of the signature's begins.
    fn upload(&self, inputs: &StepInputs, signature: &Signature) -> Result<(Buffer, Vec<usize>)> {
        let mut bytes = Vec::new();
        let mut offsets = Vec::with_capacity(signature.inputs.len());
        for argument in inputs.arguments(signature) {
            let (_, argument) = argument?;
            let offset = bytes.len().next_multiple_of(ALIGNMENT);
            bytes.resize(offset, 0);
            bytes.extend_from_slice(argument);
            offsets.push(offset);
        }
        Ok((self.device.upload(&bytes)?, offsets))
    }
}

/// The rows that are `wanted`, ascending, of those of `width` elements in a buffer.
fn rows(buffer: &Buffer, width: usize, wanted: &[usize]) -> Result<Vec<Vec<f32>>> {
    let mut rows = Vec::with_capacity(wanted.len());
    // Rows that lie side by side come in one reading.
    for run in wanted.chunk_by(|a, b| a + 1 == *b) {
        let mut read = vec![0f32; run.len() * width];
        buffer.read(4 * width * run[0], bytemuck::cast_slice_mut(&mut read))?;
        rows.extend(read.chunks(width).map(<[f32]>::to_vec));
    }
    Ok(rows)
}

/// What a call that failed means for the states that it was given.
fn run_error(CallError { error, begun }: CallError) -> RunError {
    if begun { error.into() } else { RunError::before(error) }
}

fn missing_state(name: &str) -> Error {
    Error::new(ErrorKind::Internal, "run program", "a state of the program is missing")
        .with_context("state", name)
}
