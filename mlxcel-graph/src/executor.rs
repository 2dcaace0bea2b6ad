//! What an engine supplies to run decoder graphs.

use std::time::Duration;

use mlxcel_core::{CancelToken, Error, ErrorKind, Result};

use crate::shape::ProgramShape;
use crate::signature::{InputArgument, Signature, StepInput};
use crate::state::StateLayout;

/// Runs decoder programs and keeps the states of sequences where it computes.
///
/// # Contract
///
/// *For implementers*: states are zero when allocated. `run` may give a state's storage to the program and put what comes back
/// in its place; after an error of a program that had begun, the states of that run are not used again. Calls on one executor come
/// from many threads.
pub trait Executor: Send + Sync + 'static {
    /// What one group of layers keeps of one sequence: a tensor of [`StateLayout::shape`].
    type State: Send;

    /// A program that is ready to run; it stays so as long as it is held.
    type Program: Send + Sync;

    /// The program for `shape`, made ready where it is not: this is where compiling happens.
    ///
    /// # Errors
    ///
    /// Of kind `Toolchain`, `Compile`, `Cancelled` and such; no sequence is harmed by them.
    fn prepare(&self, shape: &ProgramShape, cancel: Option<&CancelToken>) -> Result<Prepared<Self::Program>>;

    /// Makes the programs for `shapes` ready, those that are not, and gives the time it took to compile, zero where nothing was. By
    /// default one after another; where programs are compiled, side by side as far as there are cores.
    ///
    /// # Errors
    ///
    /// Those of [`prepare`](Self::prepare).
    fn prepare_together(&self, shapes: &[ProgramShape], cancel: Option<&CancelToken>) -> Result<Duration> {
        shapes.iter().map(|shape| Ok(self.prepare(shape, cancel)?.compile_time)).sum()
    }

    /// Hears that the program for `shape` is likely to be needed soon, may make it while nobody waits for it, and says whether it is ready
    /// already. A failure is nobody's but of [`prepare`](Self::prepare), which tries again. By default programs are always ready, which is
    /// right where making one takes no time.
    fn prepare_ahead(&self, shape: &ProgramShape) -> bool {
        let _ = shape;
        true
    }

    /// A state of zeros for programs of `length`.
    ///
    /// # Errors
    ///
    /// `ResourceExhausted` where memory is short.
    fn allocate(&self, layout: &StateLayout, length: usize) -> Result<Self::State>;

    /// The bytes of memory that a state for programs of `length` takes once its first `written` positions have been written: all of it by
    /// default. Where memory is given page by page as it is written, [`StateLayout::bytes_written`].
    fn state_bytes(&self, layout: &StateLayout, length: usize, written: usize) -> usize {
        let _ = written;
        layout.bytes(length)
    }

    /// Copies what `from` keeps of the first `positions` to `to`, each beside the length that it is for
    /// ([`StateLayout::copy_segments`]).
    ///
    /// # Errors
    ///
    /// `Device` where the device fails.
    fn copy(
        &self,
        layout: &StateLayout,
        from: (&Self::State, usize),
        to: (&mut Self::State, usize),
        positions: usize,
    ) -> Result<()>;

    /// Reads what a state for `length` keeps of the first `positions`, segment after segment.
    ///
    /// # Errors
    ///
    /// `Device` where the device fails.
    fn read(
        &self,
        layout: &StateLayout,
        state: &Self::State,
        length: usize,
        positions: usize,
    ) -> Result<Vec<u8>>;

    /// Writes what [`read`](Self::read) gave into a state for `length`.
    ///
    /// # Errors
    ///
    /// `Device` where the device fails.
    fn write(
        &self,
        layout: &StateLayout,
        state: &mut Self::State,
        length: usize,
        positions: usize,
        bytes: &[u8],
    ) -> Result<()>;

    /// Runs a program that [`prepare`](Self::prepare) gave over the states of each row, one for each group
    /// of layers; the program writes what the rows' tokens add into them. `wanted` lists the output rows whose logits, or of
    /// [`Outputs::Hidden`](crate::Outputs) whose hidden states, are wanted, ascending.
    ///
    /// # Errors
    ///
    /// `Device` and such: the states are then unknown, unless the program had [not begun](RunError::before).
    fn run(
        &self,
        program: &Self::Program,
        inputs: &StepInputs,
        states: &mut [&mut [Self::State]],
        wanted: &[usize],
    ) -> Result<StepOutputs, RunError>;
}

/// A program that is ready, and what that took.
#[derive(Clone, Debug)]
pub struct Prepared<P> {
    /// What [`Executor::run`] takes.
    pub program: P,
    /// The time it took to compile, zero where it was ready or nothing had to be compiled.
    pub compile_time: Duration,
}

/// Why a run gave nothing, and what that means for its states.
#[derive(Clone, Debug)]
pub struct RunError {
    error: Error,
    begun: bool,
}

impl RunError {
    /// An error from before the program began, such as memory for its inputs that is not there: the states are what they were.
    pub fn before(error: Error) -> Self {
        Self { error, begun: false }
    }

    /// Whether the program may have begun: then the states are unknown.
    pub fn has_begun(&self) -> bool {
        self.begun
    }

    /// What went wrong.
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

/// The small inputs of one pass, as the program takes them; weights and states are the executor's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepInputs {
    /// `[tokens]`: the token ids of all rows, each row padded to its room.
    pub tokens: Vec<i32>,
    /// `[rows]`: the position of each row's first token.
    pub positions: Vec<i32>,
    /// `[rows]`: the index, among the tokens of all rows, of each row's last token that is no padding.
    pub last: Vec<i32>,
    /// For each rotary embedding of the network ([`Decoder::ropes`](mlxcel_models::Decoder::ropes)), cosines and sines, `[tokens, rotary_dim / 2]` each.
    pub rotary: Vec<(Vec<f32>, Vec<f32>)>,
}

impl StepInputs {
    /// The bytes of an input; none where the network has no such input.
    pub fn get(&self, input: StepInput) -> Option<&[u8]> {
        match input {
            StepInput::Tokens => Some(bytemuck::cast_slice(&self.tokens)),
            StepInput::Positions => Some(bytemuck::cast_slice(&self.positions)),
            StepInput::Last => Some(bytemuck::cast_slice(&self.last)),
            StepInput::Cos(rope) => self.rotary.get(rope).map(|(cos, _)| bytemuck::cast_slice(cos)),
            StepInput::Sin(rope) => self.rotary.get(rope).map(|(_, sin)| bytemuck::cast_slice(sin)),
        }
    }

    /// The arguments that `signature` says are inputs, each with its bytes here.
    ///
    /// # Errors
    ///
    /// `Internal` where the program takes an input that is not here, or one of another size.
    pub fn arguments<'a>(
        &'a self,
        signature: &'a Signature,
    ) -> impl Iterator<Item = Result<(&'a InputArgument, &'a [u8])>> {
        signature.inputs.iter().map(|argument| {
            let bytes = self.get(argument.input).filter(|bytes| bytes.len() == argument.ty.bytes());
            let bytes = bytes.ok_or_else(|| {
                let message = "a step lacks an input of its program, or has one of another size";
                Error::new(ErrorKind::Internal, "run program", message).with_context("input", argument.input)
            })?;
            Ok((argument, bytes))
        })
    }

    /// The bytes of all inputs.
    pub fn bytes(&self) -> usize {
        let tables = self.rotary.iter().map(|(cos, sin)| cos.len() + sin.len());
        4 * (self.tokens.len() + self.positions.len() + self.last.len() + tables.sum::<usize>())
    }
}

/// What one pass gives, an entry an output row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutputs {
    /// The most likely token and its natural log probability; none where the program gives hidden states.
    pub best: Vec<(u32, f32)>,
    /// The logits (`[vocabulary]`), or the hidden states (`[hidden]`), of the output rows that were asked for, in that order.
    pub values: Vec<Vec<f32>>,
}

impl StepOutputs {
    /// Reads the program's first result: `[output rows, 2]` 32-bit words, token and log probability by turns.
    pub fn decode_best(words: &[u32]) -> Vec<(u32, f32)> {
        words.chunks_exact(2).map(|pair| (pair[0], f32::from_bits(pair[1]))).collect()
    }
}
