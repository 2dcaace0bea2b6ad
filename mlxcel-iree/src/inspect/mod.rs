//! Inspecting compilation: programs, intermediate stages, generated code, and a summary of a step.
//!
//! [`inspect()`] writes a folder:
//!
//! ```text
//! llama-inspected/
//!   summary.txt  summary.json         a step of each program: dispatches, bytes, the largest dispatches
//!   1-at-256/
//!     program.mlir                    the compiler's input
//!     phases/decoder.6.flow.mlir  …   the program at the end of each phase of the compiler
//!     code/…                          each kernel on its way to machine code, and that
//!     statistics.json                 the compiler's own account
//!     program.vmfb                    the runtime's input
//! ```
//!
//! If a program does not compile, the folder keeps the stages up to the failure.

#[cfg(test)]
mod tests;

pub use crate::compile::inspect_programs as inspect;
pub use mlxcel_iree_compile::inspect::{Dispatch, InspectOptions, Summary};
