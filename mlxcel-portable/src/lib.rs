//! The portable engine: decoder graphs evaluated in pure Rust.
//!
//! # Why it exists
//!
//! It runs the same graphs that are given to compilers, with an evaluator whose operations are tested one by
//! one. It needs no toolchain, runs wherever Rust does, and is the reference for compiled engines. It is
//! exact and uses little memory (weights are read from the mapped files in their stored type; memory is those
//! files plus the state of sequences), but slower than an engine that compiles.
//!
//! ```no_run
//! use mlxcel_core::{Backend, GenerateExt, GenerateOptions, LoadOptions, SessionOptions};
//!
//! let model = mlxcel_portable::PortableBackend::new().load(&"models/llama".into(), &LoadOptions::default())?;
//! let mut session = model.open_session(&SessionOptions::default())?;
//! println!("{:?}", session.generate_greedy(&[1, 2, 3], &GenerateOptions::new(16))?.tokens);
//! # Ok::<(), mlxcel_core::Error>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod backend;
pub mod eval;
mod executor;
mod faults;
#[cfg(test)]
mod residents;
#[cfg(test)]
mod states;

pub use backend::PortableBackend;
pub use mlxcel_graph::KvCacheType;
