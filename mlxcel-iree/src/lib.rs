//! The IREE engine of mlxcel: decoder graphs compiled ahead of the run, weights and KV caches resident on the device.
//!
//! # Why compile apart from running
//!
//! The compiler is another program, started as a child process: when it crashes or is killed, that is an error of a call here
//! and not the application's end, and what it made is kept on disk, checked, for every later start. The runtime is linked
//! statically and loads such artifacts in milliseconds.
//!
//! All of compiling is the feature `compile`, on by default. An application that ships its models with their programs, as [bundles](bundle),
//! does without and builds what runs them alone; a model that has no bundle is then refused.
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
//! Linear layers over few rows, where decoding spends its time, are replaced by kernels of our own (`mlxcel-iree-kernels`) that
//! read the weight once, at the speed of memory; everything else is the compiler's.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]

mod affinity;
mod backend;
pub mod bundle;
#[cfg(not(feature = "compile"))]
mod bundled_only;
#[cfg(feature = "compile")]
mod compile;
mod engine;
#[allow(unsafe_code, reason = "the runtime is a C library; everything unsafe about it is in here")]
mod ffi;
#[cfg(feature = "compile")]
pub mod inspect;
#[cfg(test)]
mod kernel_tests;
pub mod profile;
#[cfg(feature = "compile")]
#[cfg(test)]
mod random_programs_tests;
#[cfg(feature = "compile")]
#[cfg(test)]
mod target_tests;
#[cfg(test)]
mod testing;
mod threads;

pub use affinity::Affinity;
pub use backend::IreeBackend;
pub use mlxcel_graph::KvCacheType;
#[cfg(feature = "compile")]
pub use mlxcel_iree_compile::cache;
pub use mlxcel_iree_target::{
    CompileBackend, CompileBackends, CompileTarget, DeviceDescription, Processor, ResolvedTarget,
};
