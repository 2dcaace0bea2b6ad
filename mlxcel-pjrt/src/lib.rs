//! The PJRT engine of mlxcel: decoder graphs on any PJRT plugin, and one model over several devices.
//!
//! # Why a plugin
//!
//! [PJRT](https://openxla.org/xla/pjrt) is the plugin interface of compilers for StableHLO: XLA for CPUs, for GPUs of NVIDIA, AMD and
//! Intel and for TPUs, Tenstorrent's compiler, and others. A plugin is a shared library that compiles
//! programs and runs them on its devices. This crate contains a loader for plugins, an
//! [`Executor`](mlxcel_graph::Executor) on top of them, and the annotations that tell XLA's partitioner how
//! to distribute a model. Network, sessions, sampling and scheduling are shared with the other graph engines.
//! Building the crate needs nothing installed and links nothing.
//!
//! ```no_run
//! use mlxcel_core::{Backend, GenerateExt, GenerateOptions, LoadOptions, SessionOptions};
//!
//! // Uses the plugin that MLXCEL_PJRT_PLUGIN names, or the one in the active Python environment.
//! let model = mlxcel_pjrt::PjrtBackend::new().load(&"models/llama".into(), &LoadOptions::default())?;
//! let mut session = model.open_session(&SessionOptions::default())?;
//! println!("{:?}", session.generate_greedy(&[1, 2, 3], &GenerateOptions::new(16))?.tokens);
//! # Ok::<(), mlxcel_core::Error>(())
//! ```
//!
//! # Memory and transfers
//!
//! Weights are copied to the devices once, from the mapped files and in their stored types; the program
//! unpacks packed ones. A pass has one small upload (tokens, positions, rotary tables) and one small
//! readback. Caches stay on the devices and are donated to the program, which updates them in place.
//!
//! Some plugins write to standard error; this crate prints nothing.

#![deny(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod backend;
mod collectives;
mod engine;
#[allow(unsafe_code, reason = "a plugin is a C library; everything unsafe about it is in here")]
mod ffi;
mod inspect;
mod locate;
mod mesh;
mod messages;
mod options;
mod parallel;
mod platform;
pub mod profile;
mod sharding;
mod store;
#[cfg(test)]
mod testing;

pub use backend::PjrtBackend;
pub use collectives::Collective;
pub use inspect::Inspection;
pub use locate::PLUGIN_VARIABLE;
pub use mlxcel_graph::KvCacheType;
pub use options::OptionValue;
pub use platform::Platform;
