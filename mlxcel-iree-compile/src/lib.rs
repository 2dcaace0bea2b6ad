//! The compile side of mlxcel's IREE engine: compiles, caches, bundles and inspects programs.
//!
//! # Why a separate crate
//!
//! An application that ships a model with compiled programs only needs to run them. So everything about
//! compiling is in this crate, which `mlxcel-iree` uses with its feature `compile`.
//!
//! * A [`ProgramCompiler`] compiles the programs of one model for one target, with the compiler in a child
//!   process ([`compiler`]) or from the [`cache`].
//! * [`bundle::write`] compiles all programs that sessions can use and stores them with the checkpoint.
//! * [`fn@inspect::inspect`] writes the intermediate stages of compilation.
//!
//! A [`Toolchain`] sets compiler and cache, a [`ProgramOptions`](mlxcel_iree_target::ProgramOptions) the
//! target.
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
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

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
mod trial;
mod wanted;

pub use artifact::{Artifact, Artifacts};
pub use programs::ProgramCompiler;
pub use toolchain::Toolchain;
pub use trial::TrialWeights;
