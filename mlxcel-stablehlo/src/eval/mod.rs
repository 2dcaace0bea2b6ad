//! Runs programs in pure Rust.
//!
//! A [`Program`] is planned once and run any number of times, from any number of threads. Planning writes calls and
//! composites out (composites as their decomposition), joins element-by-element operations and views with the steps
//! that read them, and finds where memory can be taken over. Running allocates only what steps write.
//!
//! ```
//! use mlxcel_stablehlo::eval::{Input, Program, Tensor};
//! use mlxcel_stablehlo::{ElementType, ModuleBuilder, TensorType};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut module = ModuleBuilder::new("demo");
//! module.function("main", |b| {
//!     let x = b.argument("x", TensorType::new(ElementType::F32, [2, 3]))?;
//!     let y = b.add(x, x)?;
//!     Ok(vec![b.sum(y, &[1])?])
//! })?;
//! let program = Program::plan(&module.finish(), "main")?;
//! let x = Tensor::from_slice([2, 3], &[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
//! let results = program.run(vec![Input::Owned(x)])?;
//! assert_eq!(results[0].as_slice::<f32>(), Some(&[12.0, 30.0][..]));
//! # Ok(())
//! # }
//! ```
//!
//! # Arithmetic
//!
//! The StableHLO specification decides, and where it leaves a choice:
//!
//! - Floats are computed in `f32` and rounded to their type after each operation. Matrix products and sums of half
//!   types are summed in `f32` and rounded once. The order of summation is not that of the elements, but it is the same
//!   in every run and with any number of threads.
//! - Integers wrap. Division by zero gives -1 (all bits set), the remainder by zero the dividend. A shift by the width or
//!   more leaves zeros, or copies of the sign.
//! - A float becomes an integer by truncation, the nearest one that there is when it is out of range, 0 when it is NaN.
//! - `maximum`, `minimum` and `clamp` answer NaN where an operand is NaN.
//! - Start indices of `dynamic_slice`, `dynamic_update_slice` and `gather` are clamped so that the slice fits; a window
//!   of `scatter` that does not fit as a whole is left out, and of overlapping windows the last wins.
//! - `reduce_argmax` takes the lowest index among equal values, and NaN only where there is nothing else.
//! - `sort` is stable, whether asked for or not.

mod argmax;
mod buffer;
mod dot;
mod elementwise;
mod error;
mod evaluator;
mod flatten;
mod gather;
mod kernel;
mod lanes;
mod liveness;
mod movement;
mod node;
mod plan;
mod plan_steps;
mod reduce;
mod run;
mod scatter;
mod sort;
mod step;
mod tensor;
mod uses;
mod view;
mod workers;

use std::fmt;

pub use buffer::RunStats;
pub use error::{EvalError, Result};
pub use tensor::{Input, Tensor};
pub use workers::Workers;

use crate::literal::Literal;
use crate::module::Module;
use crate::types::TensorType;
use plan::Planner;
use step::BlockPlan;

#[cfg(target_endian = "big")]
compile_error!("tensors are little-endian bytes, which the evaluator reads as the machine's own");

/// A planned program.
#[derive(Debug)]
pub struct Program {
    arguments: Vec<(String, TensorType)>,
    results: Vec<TensorType>,
    /// The slots of the arguments first, in order.
    slots: Vec<Slot>,
    body: BlockPlan,
}

/// The size of a slot, and where its contents come from.
#[derive(Debug)]
struct Slot {
    kind: SlotKind,
    bytes: usize,
}

#[derive(Debug)]
enum SlotKind {
    /// An input of the run.
    Argument,
    Constant(Literal),
    /// A step of the plan.
    Temporary,
}

/// What a run may use; see [`Program::run_with`].
#[derive(Clone, Copy, Default)]
pub struct RunOptions<'a> {
    /// The threads that the run may use; none means the calling thread alone.
    pub workers: Option<&'a Workers>,
    /// Asked before each step; the run ends with [`EvalError::Cancelled`] once it answers true.
    pub cancel: Option<&'a dyn Fn() -> bool>,
    /// Where the run counts what it used.
    pub stats: Option<&'a RunStats>,
}

impl fmt::Debug for RunOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunOptions")
            .field("workers", &self.workers)
            .field("cancel", &self.cancel.is_some())
            .field("stats", &self.stats)
            .finish()
    }
}

impl Program {
    /// Plans the function `entry` of a module.
    ///
    /// # Errors
    /// [`EvalError::NoSuchFunction`]; [`EvalError::Malformed`] for a module that does not pass [`Module::verify`];
    /// [`EvalError::Unsupported`] for a custom call, whose meaning only a particular compiler knows.
    pub fn plan(module: &Module, entry: &str) -> Result<Self> {
        module.verify()?;
        let function =
            module.function(entry).ok_or_else(|| EvalError::NoSuchFunction { name: entry.to_owned() })?;
        let flat = flatten::flatten(module, function)?;
        let (body, slots) = Planner::plan(&flat);
        let arguments = function.arguments.iter();
        Ok(Self {
            arguments: arguments
                .map(|argument| (argument.name.clone(), function.value_type(argument.value).clone()))
                .collect(),
            results: function.result_types().cloned().collect(),
            slots,
            body,
        })
    }

    /// The name and type of each argument, in order.
    pub fn arguments(&self) -> &[(String, TensorType)] {
        &self.arguments
    }

    /// The type of each result, in order.
    pub fn results(&self) -> &[TensorType] {
        &self.results
    }

    /// Runs the program on the calling thread: `inputs` in the order of the arguments, results in order.
    ///
    /// # Errors
    /// [`EvalError::InputCount`], [`EvalError::InputType`] or [`EvalError::InputLength`] for inputs that are not what the
    /// arguments say; [`EvalError::OutOfMemory`].
    pub fn run(&self, inputs: Vec<Input<'_>>) -> Result<Vec<Tensor>> {
        self.run_with(inputs, &RunOptions::default())
    }
}
