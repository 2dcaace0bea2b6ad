//! Decoder programs on the evaluator.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mlxcel_core::{CancelToken, Error, ErrorKind, Result};
use mlxcel_graph::{
    ENTRY, Executor, Prepared, ProgramShape, ProgramWriter, Residents, ResultMeaning, RunError, Signature,
    StateLayout, StepInputs, StepOutputs, WeightArgument,
};
use mlxcel_models::Checkpoint;
use mlxcel_stablehlo::TensorType;

use crate::eval::{EvalError, Input, Program, RunOptions, Tensor, Workers};

/// A checkpoint's mapped weights, and the programs planned so far.
pub(crate) struct PortableExecutor {
    checkpoint: Checkpoint,
    writer: ProgramWriter,
    /// In the order of the programs' arguments.
    weights: Vec<Weight>,
    residents: Residents<Vec<u8>>,
    workers: Workers,
    programs: Mutex<HashMap<ProgramShape, Arc<PortableProgram>>>,
}

/// A program that is planned.
pub(crate) struct PortableProgram {
    program: Program,
    signature: Signature,
}

/// One tensor of the weights.
struct Weight {
    ty: TensorType,
    bytes: Bytes,
}

enum Bytes {
    /// In one of the checkpoint's files.
    Mapped { file: usize, range: Range<usize> },
    /// Put together from several places.
    Gathered(Vec<u8>),
}

impl Weight {
    fn new(checkpoint: &Checkpoint, argument: &WeightArgument) -> Result<Self> {
        let bytes = match checkpoint.weight(&argument.tensor)?.bytes {
            Cow::Owned(bytes) => Bytes::Gathered(bytes),
            Cow::Borrowed(bytes) => match place(checkpoint, bytes) {
                Some((file, range)) => Bytes::Mapped { file, range },
                None => {
                    let mut copy = room("read weight", bytes.len())?;
                    copy.extend_from_slice(bytes);
                    Bytes::Gathered(copy)
                }
            },
        };
        Ok(Self { ty: argument.ty.clone(), bytes })
    }

    /// Its bytes, with the content of the checkpoint's files.
    fn bytes<'a>(&'a self, files: &[&'a [u8]]) -> &'a [u8] {
        match &self.bytes {
            Bytes::Mapped { file, range } => &files[*file][range.clone()],
            Bytes::Gathered(bytes) => bytes,
        }
    }
}

/// The file in which `bytes` lie, by its number among [`Checkpoint::weight_files`], and where.
fn place(checkpoint: &Checkpoint, bytes: &[u8]) -> Option<(usize, Range<usize>)> {
    checkpoint.weight_files().enumerate().find_map(|(file, (_, content))| {
        let start = (bytes.as_ptr() as usize).checked_sub(content.as_ptr() as usize)?;
        let range = start..start.checked_add(bytes.len())?;
        (range.end <= content.len()).then_some((file, range))
    })
}

/// What one group of layers keeps of a sequence; it is away while a program runs on it, and does not come
/// back where that fails.
pub(crate) struct PortableState(Option<Tensor>);

impl PortableState {
    fn tensor(&self) -> Result<&Tensor> {
        self.0.as_ref().ok_or_else(lost_state)
    }

    fn tensor_mut(&mut self) -> Result<&mut Tensor> {
        self.0.as_mut().ok_or_else(lost_state)
    }
}

impl PortableExecutor {
    pub(crate) fn new(checkpoint: Checkpoint, writer: ProgramWriter, workers: Workers) -> Result<Self> {
        let weights = writer.weights.iter().map(|argument| Weight::new(&checkpoint, argument));
        let weights = weights.collect::<Result<_>>()?;
        let residents = writer.residents.iter().map(|resident| zeros(resident.ty.bytes()));
        let residents = Residents::new(residents.collect::<Result<Vec<_>>>()?);
        Ok(Self { checkpoint, writer, weights, residents, workers, programs: Mutex::default() })
    }

    fn program(&self, shape: &ProgramShape) -> Result<Arc<PortableProgram>> {
        let mut programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(program) = programs.get(shape) {
            return Ok(Arc::clone(program));
        }
        let mlxcel_graph::Program { module, signature } = self.writer.program(shape)?;
        let program = Program::plan(&module, ENTRY).map_err(|error| failed("plan program", error))?;
        let planned = Arc::new(PortableProgram { program, signature });
        programs.insert(shape.clone(), Arc::clone(&planned));
        Ok(planned)
    }
}

impl Executor for PortableExecutor {
    type State = PortableState;
    type Program = Arc<PortableProgram>;

    fn prepare(
        &self,
        shape: &ProgramShape,
        _cancel: Option<&CancelToken>,
    ) -> Result<Prepared<Self::Program>> {
        // Planning is a matter of milliseconds; nothing is compiled.
        Ok(Prepared { program: self.program(shape)?, compile_time: Duration::ZERO })
    }

    fn allocate(&self, layout: &StateLayout, length: usize) -> Result<PortableState> {
        let zeros = Tensor::zeros(layout.tensor_type(length));
        Ok(PortableState(Some(zeros.map_err(|error| failed("allocate state", error))?)))
    }

    fn copy(
        &self,
        layout: &StateLayout,
        (from, from_length): (&PortableState, usize),
        (to, to_length): (&mut PortableState, usize),
        positions: usize,
    ) -> Result<()> {
        let (from, to) = (from.tensor()?.bytes(), to.tensor_mut()?.bytes_mut());
        for part in layout.copy_segments(from_length, to_length, positions) {
            to[part.to..part.to + part.bytes].copy_from_slice(&from[part.from..part.from + part.bytes]);
        }
        Ok(())
    }

    fn read(
        &self,
        layout: &StateLayout,
        state: &PortableState,
        length: usize,
        positions: usize,
    ) -> Result<Vec<u8>> {
        let from = state.tensor()?.bytes();
        let mut bytes = room("read state", layout.bytes(positions))?;
        for part in layout.copy_segments(length, positions, positions) {
            bytes.extend_from_slice(&from[part.from..part.from + part.bytes]);
        }
        Ok(bytes)
    }

    fn write(
        &self,
        layout: &StateLayout,
        state: &mut PortableState,
        length: usize,
        positions: usize,
        bytes: &[u8],
    ) -> Result<()> {
        let to = state.tensor_mut()?.bytes_mut();
        for part in layout.copy_segments(positions, length, positions) {
            to[part.to..part.to + part.bytes].copy_from_slice(&bytes[part.from..part.from + part.bytes]);
        }
        Ok(())
    }

    fn write_resident(&self, argument: usize, slot: usize, bytes: &[u8]) -> Result<()> {
        self.residents.change(argument, |tensor| {
            let range = self.writer.residents[argument].slot_range(slot, bytes.len())?;
            Arc::make_mut(tensor)[range].copy_from_slice(bytes);
            Ok(())
        })
    }

    fn run(
        &self,
        planned: &Arc<PortableProgram>,
        inputs: &StepInputs,
        states: &mut [&mut [PortableState]],
        wanted: &[usize],
    ) -> Result<StepOutputs, RunError> {
        let PortableProgram { program, signature } = &**planned;
        let mut arguments = Vec::with_capacity(program.arguments().len());
        let files: Vec<&[u8]> = self.checkpoint.weight_files().map(|(_, content)| content).collect();
        for weight in &self.weights {
            arguments.push(Input::Borrowed { ty: &weight.ty, bytes: weight.bytes(&files) });
        }
        let residents = self.residents.current();
        for (argument, bytes) in signature.residents.iter().zip(residents.iter()) {
            arguments.push(Input::Borrowed { ty: &argument.ty, bytes });
        }
        for argument in inputs.arguments(signature) {
            let (argument, bytes) = argument.map_err(RunError::before)?;
            arguments.push(Input::Borrowed { ty: &argument.ty, bytes });
        }
        for argument in &signature.states {
            let state = states.get_mut(argument.state.row).and_then(|row| row.get_mut(argument.state.group));
            arguments.push(Input::Owned(state.and_then(|state| state.0.take()).ok_or_else(lost_state)?));
        }
        let options = RunOptions { workers: Some(&self.workers), ..RunOptions::default() };
        let results = program.run_with(arguments, &options).map_err(|error| failed("run program", error))?;
        let mut outputs = StepOutputs::default();
        for (described, result) in signature.results.iter().zip(results) {
            match described.meaning {
                ResultMeaning::Best => {
                    outputs.best = StepOutputs::decode_best(bytemuck::cast_slice(result.bytes()));
                }
                ResultMeaning::Logits | ResultMeaning::Hidden => {
                    let (values, width) = (bytemuck::cast_slice(result.bytes()), described.ty.shape[1]);
                    outputs.values =
                        wanted.iter().map(|row| values[row * width..][..width].to_vec()).collect();
                }
                ResultMeaning::States => {
                    outputs.states = bytemuck::cast_slice(result.bytes()).to_vec();
                }
                ResultMeaning::State(state) => {
                    if let Some(kept) = states.get_mut(state.row).and_then(|row| row.get_mut(state.group)) {
                        kept.0 = Some(result);
                    }
                }
            }
        }
        Ok(outputs)
    }
}

fn failed(operation: &'static str, error: EvalError) -> Error {
    if let EvalError::OutOfMemory { bytes } = error {
        return Error::out_of_memory(operation, bytes);
    }
    Error::new(ErrorKind::Internal, operation, "the evaluator rejected the decoder's graph")
        .with_source(error)
}

/// A vector for `bytes`.
fn room(operation: &'static str, bytes: usize) -> Result<Vec<u8>> {
    let mut room = Vec::new();
    room.try_reserve_exact(bytes).map_err(|_| Error::out_of_memory(operation, bytes))?;
    Ok(room)
}

fn zeros(bytes: usize) -> Result<Vec<u8>> {
    let mut zeros = room("allocate resident", bytes)?;
    zeros.resize(bytes, 0);
    Ok(zeros)
}

fn lost_state() -> Error {
    Error::new(ErrorKind::Internal, "run program", "the state of a failed run was used again")
}
