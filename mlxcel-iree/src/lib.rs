//! The IREE engine of mlxcel: decoder graphs compiled ahead of the run, weights and KV caches resident on the device.
//!
//! # Why compile apart from running
//!
//! The compiler is another program, started as a child process: when it crashes or is killed, that is an error of a call here
//! and not the application's end, and what it made is kept on disk, checked, for every later start. The runtime is linked
//! statically and loads such artifacts in milliseconds.
//!
//! [`IreeBackend`] is the engine. A model is a folder with a Hugging Face checkpoint:
//!
//! ```no_run
//! use mlxcel_core::{Backend, GenerateExt, GenerateOptions, LoadOptions, SessionOptions};
//!
//! let model = mlxcel_iree::IreeBackend::new().load(&"models/llama".into(), &LoadOptions::default())?;
//! let mut session = model.open_session(&SessionOptions::default())?;
//! println!("{:?}", session.generate_greedy(&[1, 2, 3], &GenerateOptions::new(16))?.tokens);
//! # Ok::<(), mlxcel_core::Error>(())
//! ```
//!
//! Around it: [`CompileTarget`] and [`CompileBackends`] say what programs are compiled for, [`cache`] what is kept of them,
//! [`bundle`] takes them to machines that have no compiler, [`mod@inspect`] shows what the compiler makes of them, and [`profile`] where
//! the time of a step goes.
//!
//! # What a program is specialised for
//!
//! The target, by default the host's processor; the rows of a pass (a prompt chunk, decoding rows, both together); the length of the
//! KV caches; whether every position gives results. A model opens with the programs that every generation begins with. Others are made
//! when a step first needs them, side by side where it needs several; and when a sequence nears the end of its length, those of the next
//! are made by a thread of low priority before the sequence gets there.
//! [`LoadOptions::with_prepare`](mlxcel_core::LoadOptions::with_prepare) has all that its options can reach ready at load: for `n`
//! sequences (16 at most share a pass) and `c` sizes of chunks, `n * (1 + c)` programs at each length, `n * (2 + 3 * c)` with those for
//! scores and hidden states. Each is compiled once and kept in the [`cache`].
//!
//! # Where the runtime comes from, and which devices it has
//!
//! IREE's runtime is linked statically: built from source (feature `vendored`, the default) or taken from the distribution that
//! `IREE_DIST` names at build time (feature `dist`). The processor is the devices `local-task` and `local-sync`; the features
//! `cuda` and `vulkan` add those of their names. `docs/iree-runtime.md` in the repository says what each needs.
//!
//! # Kernels
//!
//! Linear layers over few rows, where decoding spends its time, are replaced by kernels of this crate's own that read the
//! weight once, at the speed of memory; everything else is the compiler's.

#![deny(unsafe_code)]

mod affinity;
mod artifact;
mod backend;
pub mod bundle;
pub mod cache;
mod compiler;
mod engine;
#[cfg(test)]
mod every_target_tests;
#[allow(unsafe_code, reason = "the runtime is a C library; everything unsafe about it is in here")]
mod ffi;
pub mod inspect;
#[cfg(test)]
mod kernel_tests;
pub mod profile;
mod target;
mod threads;

pub use affinity::Affinity;
pub use backend::{CompileBackend, CompileBackends, ResolvedTarget};
pub use engine::IreeBackend;
pub use mlxcel_graph::KvCacheType;
pub use target::{CompileTarget, DeviceDescription, Processor};
