//! Inspecting compilation: programs, intermediate stages, generated code, and a summary of a step, in a folder
//! whose files [`mlxcel_iree_compile::inspect`] lists.

#[cfg(test)]
mod tests;

pub use crate::compile::inspect_programs as inspect;
pub use mlxcel_iree_compile::inspect::{Dispatch, InspectOptions, Summary};
