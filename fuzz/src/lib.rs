//! Fuzz targets: all untrusted input of mlxcel, and what callers may do in any order.
//!
//! A [`Target`] is a plain function of bytes. It ends, in bounded time and memory and without a panic, or
//! there is a defect; what it found out on the way it tells in a few words, its [`Outcome`]. Two programs
//! drive targets:
//!
//! * The binary of this package ([`run`]), on a stable toolchain: inputs of the corpus are changed by what
//!   their format is made of ([`mutate`]), and inputs with an outcome that is new are changed further. Each
//!   input runs in a child process ([`child`]), so that an abort, an endless loop, an overflow of the stack
//!   and memory beyond the bound are findings too; what is found is made small and kept. Inputs are sent 64
//!   at a time; a target with a [quick part](Target::quick) runs all of it for a share of them only.
//! * libFuzzer, guided by coverage, on a nightly toolchain: the package in `fuzz/libfuzzer`.
//!
//! ```text
//! cargo xtask fuzz template --minutes 30      # one target; all without a name
//! cargo xtask fuzz template --input FILE      # once more, what was found
//! cargo xtask test --only fuzz                # what continuous integration runs
//! ```
//!
//! `corpus/TARGET/` has the inputs that fuzzing starts from: what hostile files looked like that once did
//! harm, beside what the fixtures of the repository hold. A test runs them all.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr)]

pub mod child;
pub mod corpus;
pub mod mutate;
pub mod outcome;
mod process;
pub mod run;
pub mod target;
mod targets;

pub use outcome::Outcome;
pub use process::Death;
pub use target::{Format, Part, Target};
