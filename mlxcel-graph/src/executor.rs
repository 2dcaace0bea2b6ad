//! The executor: what an engine implements to run decoder graphs.

use std::time::Duration;

use mlxcel_core::{CancelToken, Error, ErrorKind, Result};

use crate::shape::ProgramShape;
use crate::signature::{InputArgument, Signature, StepInput};
use crate::state::StateLayout;

/// Runs decoder programs, and holds the states of sequences in device memory.
///
/// # Contract
///
/// *For implementers*: states are zero-initialized. `run` may donate a state's storage to the program and
/// replace it with the result; after an error of a program that had started, the states of that run are not
/// used again. An executor is called from many threads.
pub trait Executor: Send + Sync + 'static {
    /// What one group of layers keeps of one sequence: a tensor of [`StateLayout::shape`].
    type State: Send;

    /// A program that is ready to run; it stays so as long as it is held.
    type Program: Send + Sync;

    /// Returns the program for `shape`, compiling it if necessary.
    ///
    /// # Errors
    ///
    /// Of kinds such as `Toolchain`, `Compile` and `Cancelled`; sequences are unaffected.
    fn prepare(&self, shape: &ProgramShape, cancel: Option<&CancelToken>) -> Result<Prepared<Self::Program>>;

    /// Prepares the programs for `shapes` and returns the time spent compiling. Sequential by default;
    /// engines that compile override it to compile in parallel.
    ///
    /// # Errors
    ///
    /// The errors of [`prepare`](Self::prepare).
    fn prepare_together(&self, shapes: &[ProgramShape], cancel: Option<&CancelToken>) -> Result<Duration> {
        shapes.iter().map(|shape| Ok(self.prepare(shape, cancel)?.compile_time)).sum()
    }

    /// Hints that the program for `shape` is likely to be needed soon, so that it can be compiled in the
    /// background; returns whether it is ready. Failures are ignored here, since
    /// [`prepare`](Self::prepare) tries again. By default programs are always ready, for engines that do
    /// not compile.
    fn prepare_ahead(&self, shape: &ProgramShape) -> bool {
        let _ = shape;
        true
    }

    /// Whether the program for `shape` is ready. By default all are, for engines that do not compile, or not
    /// in the background.
    fn is_ready(&self, shape: &ProgramShape) -> bool {
        let _ = shape;
        true
    }

    /// Allocates a zeroed state for programs of `length`.
    ///
    /// # Errors
    ///
    /// `ResourceExhausted` if memory runs out.
    fn allocate(&self, layout: &StateLayout, length: usize) -> Result<Self::State>;

    /// The memory of a state for programs of `length` with `written` positions, in bytes: all of it by
    /// default, or [`StateLayout::bytes_written`] if the system allocates pages on first write.
    fn state_bytes(&self, layout: &StateLayout, length: usize, written: usize) -> usize {
        let _ = written;
        layout.bytes(length)
    }

    /// Copies the first `positions` positions of `from` to `to`; each is given with its length
    /// ([`StateLayout::copy_segments`]).
    ///
    /// # Errors
    ///
    /// `Device` if the device fails.
    fn copy(
        &self,
        layout: &StateLayout,
        from: (&Self::State, usize),
        to: (&mut Self::State, usize),
        positions: usize,
    ) -> Result<()>;

    /// Reads the first `positions` positions of a state for `length`, segment by segment.
    ///
    /// # Errors
    ///
    /// `Device` if the device fails.
    fn read(
        &self,
        layout: &StateLayout,
        state: &Self::State,
        length: usize,
        positions: usize,
    ) -> Result<Vec<u8>>;

    /// Writes bytes from [`read`](Self::read) into a state for `length`.
    ///
    /// # Errors
    ///
    /// `Device` if the device fails.
    fn write(
        &self,
        layout: &StateLayout,
        state: &mut Self::State,
        length: usize,
        positions: usize,
        bytes: &[u8],
    ) -> Result<()>;

    /// Replaces one slot, an element of the outermost dimension, of the resident tensor with this index in
    /// [`Signature::residents`]. Passes that begin later read it; a pass that runs, on any thread, reads what
    /// was there when it began. Executors without residents leave this as it is.
    ///
    /// # Errors
    ///
    /// `Unsupported` if the device has no residents; `Internal` for a resident or slot that does not exist,
    /// or another number of bytes; `ResourceExhausted` and `Device`, after which the slot is unknown.
    fn write_resident(&self, argument: usize, slot: usize, bytes: &[u8]) -> Result<()> {
        let _ = (slot, bytes);
        let message = "the device has no tensors that are rewritten between passes";
        Err(Error::unsupported("write resident", message).with_context("resident", argument))
    }

    /// Runs a program from [`prepare`](Self::prepare) over the states of each row, one per group of layers;
    /// the program updates them with the rows' tokens. `wanted` lists, in ascending order, the output
    /// rows whose logits (or hidden states, for [`Outputs::Hidden`](crate::Outputs)) are read back.
    ///
    /// # Errors
    ///
    /// `Device` and others. The states are then unknown, unless the program had [not
    /// started](RunError::before).
    fn run(
        &self,
        program: &Self::Program,
        inputs: &StepInputs,
        states: &mut [&mut [Self::State]],
        wanted: &[usize],
    ) -> Result<StepOutputs, RunError>;
}

/// A prepared program, and the time it took.
#[derive(Clone, Debug)]
pub struct Prepared<P> {
    /// The program, for [`Executor::run`].
    pub program: P,
    /// Time spent compiling; zero if it was ready.
    pub compile_time: Duration,
}

/// An error of a run, and whether it invalidates the states.
#[derive(Clone, Debug)]
pub struct RunError {
    error: Error,
    begun: bool,
}

impl RunError {
    /// An error before the program started, such as no memory for its inputs: the states are unchanged.
    pub fn before(error: Error) -> Self {
        Self { error, begun: false }
    }

    /// Whether the program may have started, so that the states are unknown.
    pub fn has_begun(&self) -> bool {
        self.begun
    }

    /// The error.
    pub fn into_error(self) -> Error {
        self.error
    }
}

impl From<Error> for RunError {
    /// An error after which the states are unknown.
    fn from(error: Error) -> Self {
        Self { error, begun: true }
    }
}

/// The inputs of one pass. Weights and states are held by the executor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepInputs {
    /// `[tokens]`: the token ids of all rows, each row padded to its size.
    pub tokens: Vec<i32>,
    /// `[tokens]`: the types of the tokens, 0 for padding. Empty for a model without token types.
    pub types: Vec<i32>,
    /// `[tokens, hidden]`: the hidden states that a draft head reads, 0 for padding. Empty for other models.
    pub states: Vec<f32>,
    /// `[rows]`: the position of each row's first token.
    pub positions: Vec<i32>,
    /// `[rows]`: the index, among the tokens of all rows, of each row's last token before padding.
    pub last: Vec<i32>,
    /// `[tokens]`: the index of the first token of each token's text, and for padding its own. Empty for a
    /// model that does not read in both directions.
    pub firsts: Vec<i32>,
    /// `[rows]`: the slot of the adapter of each row's sequence, negative without one. Empty for a model
    /// without room for adapters.
    pub adapters: Vec<i32>,
    /// For each rotary embedding of the network ([`Decoder::ropes`](mlxcel_models::Decoder::ropes)), cosines
    /// and sines, `[tokens, rotary_dim / 2]` each.
    pub rotary: Vec<(Vec<f32>, Vec<f32>)>,
}

impl StepInputs {
    /// The bytes of an input; `None` if the network does not have it.
    pub fn get(&self, input: StepInput) -> Option<&[u8]> {
        match input {
            StepInput::Tokens => Some(bytemuck::cast_slice(&self.tokens)),
            StepInput::Types => Some(bytemuck::cast_slice(&self.types)),
            StepInput::States => Some(bytemuck::cast_slice(&self.states)),
            StepInput::Positions => Some(bytemuck::cast_slice(&self.positions)),
            StepInput::Last => Some(bytemuck::cast_slice(&self.last)),
            StepInput::Firsts => Some(bytemuck::cast_slice(&self.firsts)),
            StepInput::Adapters => Some(bytemuck::cast_slice(&self.adapters)),
            StepInput::Cos(rope) => self.rotary.get(rope).map(|(cos, _)| bytemuck::cast_slice(cos)),
            StepInput::Sin(rope) => self.rotary.get(rope).map(|(_, sin)| bytemuck::cast_slice(sin)),
        }
    }

    /// The input arguments of `signature` with their bytes.
    ///
    /// # Errors
    ///
    /// `Internal` if an input is missing or has another size.
    pub fn arguments<'a>(
        &'a self,
        signature: &'a Signature,
    ) -> impl Iterator<Item = Result<(&'a InputArgument, &'a [u8])>> {
        signature.inputs.iter().map(|argument| {
            let bytes = self.get(argument.input).filter(|bytes| bytes.len() == argument.ty.bytes());
            let bytes = bytes.ok_or_else(|| {
                let message = "an input of the program is missing or has the wrong size";
                Error::new(ErrorKind::Internal, "run program", message).with_context("input", argument.input)
            })?;
            Ok((argument, bytes))
        })
    }

    /// The total size of all inputs in bytes.
    pub fn bytes(&self) -> usize {
        let integers = [&self.tokens, &self.types, &self.positions, &self.last, &self.firsts, &self.adapters];
        let integers = integers.iter().map(|input| input.len()).sum::<usize>();
        let tables = self.rotary.iter().map(|(cos, sin)| cos.len() + sin.len()).sum::<usize>();
        4 * (integers + self.states.len() + tables)
    }
}

/// The results of one pass, one entry per output row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutputs {
    /// The most likely token and its natural log probability; empty if the program returns hidden states.
    pub best: Vec<(u32, f32)>,
    /// The logits (`[vocabulary]`) or hidden states (`[hidden]`) of the wanted output rows, in order.
    pub values: Vec<Vec<f32>>,
    /// The hidden states of all tokens of the pass, padding included (`[tokens, hidden]`); empty unless the
    /// program [returns](crate::ResultMeaning::States) them.
    pub states: Vec<f32>,
}

impl StepOutputs {
    /// Decodes the program's first result: `[output rows, 2]` 32-bit words, alternating token and log
    /// probability.
    pub fn decode_best(words: &[u32]) -> Vec<(u32, f32)> {
        words.chunks_exact(2).map(|pair| (pair[0], f32::from_bits(pair[1]))).collect()
    }
}
