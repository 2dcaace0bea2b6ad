//! The PJRT engine of mlxcel: decoder graphs on any PJRT plugin, and one model over several devices.
//!
//! # Why a plugin
//!
//! [PJRT](https://openxla.org/xla/pjrt) is the interface by which compilers that take StableHLO are plugged in: XLA for CPUs, GPUs of NVIDIA, AMD
//! and Intel and for TPUs, Tenstorrent's compiler, others. A plugin is a shared library that compiles programs and runs them on its
//! devices. This crate is a loader of that interface, an [`Executor`](mlxcel_graph::Executor) over it, and annotations that tell a
//! partitioner how a model is spread; the network, sessions, sampling and scheduling are those of every graph engine. So nothing has to
//! be installed to build it, and nothing is linked.
//!
//! ```no_run
//! use mlxcel_core::{Backend, GenerateExt, GenerateOptions, LoadOptions, SessionOptions};
//!
//! // MLXCEL_PJRT_PLUGIN names a plugin, or the active Python environment has one.
//! let model = mlxcel_pjrt::PjrtBackend::new().load(&"models/llama".into(), &LoadOptions::default())?;
//! let mut session = model.open_session(&SessionOptions::default())?;
//! println!("{:?}", session.generate_greedy(&[1, 2, 3], &GenerateOptions::new(16))?.tokens);
//! # Ok::<(), mlxcel_core::Error>(())
//! ```
//!
//! # What runs where
//!
//! Weights are copied to the devices once, from the mapped files and in the types that they are stored in; packed ones are unpacked by
//! the program. A pass takes one small upload (tokens, positions, rotary tables) and one small readback. Caches stay on the devices: a
//! program is given them and updates them in place.
//!
//! Plugins write to standard error by themselves; this crate prints nothing.

#![deny(unsafe_code)]

mod backend;
mod collectives;
mod engine;
#[allow(unsafe_code, reason = "a plugin is a C library; everything unsafe about it is in here")]
mod ffi;
mod inspect;
mod locate;
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
