//! Running decoder programs on an IREE device.

use std::time::Duration;

use mlxcel_core::{CancelToken, Error, ErrorKind, Result};
use mlxcel_graph::{
    Executor, Outputs, Prepared, ProgramShape, RunError, StateLayout, StepInputs, StepOutputs,
};
use mlxcel_models::Decoder;
use mlxcel_stablehlo::{ElementType, TensorType};

use super::programs::Programs;
use crate::ffi::{ALIGNMENT, Argument, Buffer, CallError, Constants, Device, Function};
use crate::profile::Profiler;

/// A device with a model's programs and weights on it.
pub(crate) struct IreeExecutor {
    device: Device,
    programs: Programs,
    weights: Constants,
    /// The elements of a row of logits.
    vocabulary_size: usize,
    /// The elements of a hidden state.
    hidden_size: usize,
    profiler: Option<Profiler>,
}

/// A program on the device.
pub(crate) struct IreeProgram {
    function: Function,
    shape: ProgramShape,
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
    pub(crate) fn new(device: Device, programs: Programs, weights: Constants, decoder: &Decoder) -> Self {
        let Decoder { vocabulary_size, hidden_size, .. } = *decoder;
        Self { device, programs, weights, vocabulary_size, hidden_size, profiler: None }
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
        let (function, compile_time) = self.programs.prepare(shape, cancel)?;
        Ok(Prepared { program: IreeProgram { function, shape: shape.clone() }, compile_time })
    }

    fn prepare_together(&self, shapes: &[ProgramShape], cancel: Option<&CancelToken>) -> Result<Duration> {
        self.programs.prepare_together(shapes, cancel)
    }

    fn prepare_ahead(&self, shape: &ProgramShape) -> bool {
        self.programs.prepare_ahead(shape)
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
        layout
            .copy_segments(from_length, to_length, positions)
            .try_for_each(|part| from.buffer.copy_to(part.from, &to.buffer, part.to, part.bytes))
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

/// One of a step's small inputs in the buffer that holds them all.
struct Part {
    offset: usize,
    shape: Vec<usize>,
    element: ElementType,
}

impl IreeExecutor {
    fn pass(
        &self,
        IreeProgram { function, shape }: &IreeProgram,
        inputs: &StepInputs,
        states: &mut [&mut [IreeState]],
        wanted: &[usize],
    ) -> Result<StepOutputs, RunError> {
        let (step, parts) = self.upload(inputs, shape).map_err(RunError::before)?;
        let step_arguments = parts.iter().map(|part| Argument {
            buffer: &step,
            offset: part.offset,
            shape: &part.shape,
            element: part.element,
        });
        let state_arguments = states
            .iter()
            .flat_map(|row| row.iter())
            .map(|state| Argument::new(&state.buffer, &state.ty.shape, state.ty.element));
        let arguments: Vec<_> = step_arguments.chain(state_arguments).collect();
        let called = function.invoke(&self.weights, &arguments);
        let mut results = called.map_err(run_error)?.into_iter();
        let (best, width) = match shape.outputs {
            Outputs::Last | Outputs::Every => {
                (Some(results.next().ok_or_else(missing_result)?), self.vocabulary_size)
            }
            Outputs::Hidden => (None, self.hidden_size),
        };
        let values = results.next().ok_or_else(missing_result)?;
        if values.ty.shape != [shape.output_rows(), width] {
            let message = "the program's logits or hidden states have another shape";
            return Err(Error::new(ErrorKind::Internal, "run program", message)
                .with_context("shape", format_args!("{:?}", values.ty.shape))
                .into());
        }
        for state in states.iter_mut().flat_map(|row| row.iter_mut()) {
            let updated = results.next().ok_or_else(missing_result)?.buffer;
            // Right either way, but a copy of the state in every step would be worth knowing.
            if !updated.shares_storage_with(&state.buffer) {
                tracing::debug!(program = %shape, "a state was copied instead of updated in place");
            }
            state.buffer = updated;
        }
        let mut words = vec![0u32; best.as_ref().map_or(0, |_| 2 * shape.output_rows())];
        if let Some(best) = best {
            best.buffer.read(0, bytemuck::cast_slice_mut(&mut words))?;
        }
        let mut rows = Vec::with_capacity(wanted.len());
        // Rows that lie side by side come in one reading.
        for run in wanted.chunk_by(|a, b| a + 1 == *b) {
            let mut read = vec![0f32; run.len() * width];
            values.buffer.read(4 * width * run[0], bytemuck::cast_slice_mut(&mut read))?;
            rows.extend(read.chunks(width).map(<[f32]>::to_vec));
        }
        Ok(StepOutputs { best: StepOutputs::decode_best(&words), values: rows })
    }

    /// Sends a step's small inputs to the device in one go.
    fn upload(&self, inputs: &StepInputs, shape: &ProgramShape) -> Result<(Buffer, Vec<Part>)> {
        let tokens = shape.tokens();
        let mut bytes = Vec::new();
        let mut parts = Vec::new();
        for (index, argument) in inputs.arguments().enumerate() {
            let offset = bytes.len().next_multiple_of(ALIGNMENT);
            bytes.resize(offset, 0);
            bytes.extend_from_slice(argument);
            // Tokens, positions and last come first, then tables of a row for each token.
            let (element, shape) = match index {
                0..3 => (ElementType::I32, vec![argument.len() / 4]),
                _ => (ElementType::F32, vec![tokens, argument.len() / 4 / tokens]),
            };
            parts.push(Part { offset, shape, element });
        }
        Ok((self.device.upload(&bytes)?, parts))
    }
}

/// What a call that failed means for the states that it was given.
fn run_error(CallError { error, begun }: CallError) -> RunError {
    if begun { error.into() } else { RunError::before(error) }
}

fn missing_result() -> Error {
    Error::new(ErrorKind::Internal, "run program", "the program returned too few results")
}
