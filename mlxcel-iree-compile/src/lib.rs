//! The compile side of mlxcel's IREE engine: programs compiled ahead of the run, kept, bundled and looked into.
//!
//! # Why apart from running
//!
//! An application that ships a model with its programs needs what runs them and nothing else. So everything about compiling is here,
//! and `mlxcel-iree`, which runs programs, takes it in by its feature `compile`.
//!
//! * A [`ProgramCompiler`] makes the programs of one model for one target, by the compiler, a child process ([`compiler`]), or out
//!   of the [`cache`].
//! * [`bundle::write`] makes all that sessions can ask for and puts them beside the checkpoint.
//! * [`fn@inspect::inspect`] shows what the compiler makes of them.
//!
//! A [`Toolchain`] says which compiler and which cache, a [`ProgramOptions`](mlxcel_iree_target::ProgramOptions) what for.
//!
//! ```no_run
//! use mlxcel_iree_compile::Toolchain;
//! use mlxcel_iree_compile::inspect::{InspectOptions, inspect};
//! use mlxcel_iree_target::ProgramOptions;
//!
//! let wanted = ProgramOptions::default();
//! for program in inspect(&Toolchain::default(), &wanted, &"models/llama".into(), "inspected", &InspectOptions::default())? {
//!     println!("{program}");
//! }
//! # Ok::<(), mlxcel_core::Error>(())
//! ```

#![forbid(unsafe_code)]

mod artifact;
pub mod bundle;
pub mod cache;
pub mod compiler;
mod diagnostics;
#[cfg(test)]
mod every_target_tests;
pub mod inspect;
mod programs;
#[cfg(test)]
mod testing;
mod toolchain;
mod wanted;

pub use artifact::{Artifact, Artifacts};
pub use programs::ProgramCompiler;
pub use toolchain::Toolchain;

/// The driver of the device that programs are compiled for where nothing is said: this machine's processor.
const HERE: &str = "local-task";
