//! The evaluator: every operation against values computed by hand, and random programs against a second,
//! plain one.

mod arithmetic;
mod contractions;
mod control;
mod elementwise;
mod indexing;
mod memory;
// The generator of random programs is a part of the builder's tests.
#[path = "../../../mlxcel-stablehlo/tests/support/mod.rs"]
mod programs;
mod random_programs;
mod reference;
mod shapes;
pub(crate) mod support;
