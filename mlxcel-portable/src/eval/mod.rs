//! Runs programs in pure Rust.
//!
//! A [`Program`] is planned once and can run any number of times, on any number of threads. Planning inlines
//! calls and composites (as their decompositions), fuses elementwise operations and views into the steps that
//! read them, and finds buffers to reuse. A run allocates only what its steps write.
//!
//! ```
//! use mlxcel_portable::eval::{Input, Program, Tensor};
//! use mlxcel_stablehlo::{ElementType, Module, TensorType};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let module = Module::of_function("demo", "main", |b| {
//!     let x = b.argument("x", TensorType::new(ElementType::F32, [2, 3]))?;
//!     let y = b.add(x, x)?;
//!     Ok(vec![b.sum(y, &[1])?])
//! })?;
//! let program = Program::plan(&module, "main")?;
//! let x = Tensor::from_slice([2, 3], &[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
//! let results = program.run(vec![Input::Owned(x)])?;
//! assert_eq!(results[0].as_slice::<f32>(), Some(&[12.0, 30.0][..]));
//! # Ok(())
//! # }
//! ```
//!
//! # Arithmetic
//!
//! Arithmetic follows the StableHLO specification. Where it leaves a choice:
//!
//! - Floats are computed in `f32` and rounded to their type after each operation. Matrix products and sums of
//!   half-precision types are summed in `f32` and rounded once. The summation order differs from the element
//!   order, but is the same in every run and for any number of threads.
//! - Integers wrap. Division by zero gives -1 (all bits set), the remainder by zero the dividend. Shifting by
//!   the width or more gives zero, or copies of the sign.
//! - A float converts to an integer by truncation, saturating out of range; NaN converts to 0.
//! - `maximum`, `minimum` and `clamp` return NaN if an operand is NaN.
//! - Start indices of `dynamic_slice`, `dynamic_update_slice` and `gather` are clamped so that the slice
//!   fits. A window of `scatter` that does not fit completely is skipped, and the last of overlapping windows
//!   wins.
//! - `reduce_argmax` returns the lowest index of equal values, and NaN only if all values are NaN.

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
mod step;
mod tensor;
mod uses;
mod view;
mod workers;

use std::fmt;

use mlxcel_stablehlo::{Literal, Module, TensorType};

pub use buffer::RunStats;
pub use error::{EvalError, Result};
pub use tensor::{Input, Tensor};
pub use workers::Workers;

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

/// Resources and hooks of a run; see [`Program::run_with`].
#[derive(Clone, Copy, Default)]
pub struct RunOptions<'a> {
    /// The threads of the run; `None` uses the calling thread only.
    pub workers: Option<&'a Workers>,
    /// Called before each step; the run ends with [`EvalError::Cancelled`] when it returns true.
    pub cancel: Option<&'a dyn Fn() -> bool>,
    /// Where the run records its memory and steps.
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
    /// [`EvalError::NoSuchFunction`]; [`EvalError::Malformed`] for a module that does not pass
    /// [`Module::verify`]; [`EvalError::Unsupported`] for a custom call.
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

    /// Runs the program on the calling thread. `inputs` are in the order of the arguments, results in the
    /// order of the program's.
    ///
    /// # Errors
    /// [`EvalError::InputCount`], [`EvalError::InputType`] or [`EvalError::InputLength`] for inputs that do
    /// not match the arguments; [`EvalError::OutOfMemory`].
    pub fn run(&self, inputs: Vec<Input<'_>>) -> Result<Vec<Tensor>> {
        self.run_with(inputs, &RunOptions::default())
    }
}
