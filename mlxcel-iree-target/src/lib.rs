//! Compile targets, devices and bundle manifests of mlxcel's IREE engine.
//!
//! # Why a separate crate
//!
//! Programs may be compiled and run on different machines, so both sides share these definitions, as data: a
//! [`CompileTarget`] with its [`CompileBackend`], the [`DeviceDescription`] that it is checked against, and
//! the [`manifest`] of a bundle. This crate neither compiles nor runs programs.
//!
//! ```
//! use mlxcel_iree_target::{CompileBackends, DeviceDescription, Processor};
//!
//! let target = CompileBackends::builtin().resolve(&"llvm-cpu:x86-64-v3".parse()?)?;
//! let old = Processor::new("x86_64", ["sse3"]);
//! let device = DeviceDescription::of_driver("local-task").with_processor(old);
//! assert!(target.check_device(&device).unwrap_err().context("missing").is_some());
//! # Ok::<(), mlxcel_core::Error>(())
//! ```

#![deny(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod backend;
#[allow(unsafe_code, reason = "setup of a child between fork and exec is a hook of the operating system")]
mod child;
pub mod describe;
mod file;
pub mod laid_out;
pub mod manifest;
pub mod process;
mod revision;
mod sum;
mod target;
pub mod threads;

pub use backend::{CompileBackend, CompileBackends, ProgramOptions, ResolvedTarget};
pub use file::check_path;
pub use revision::{COMMIT, RELEASE, Revision};
pub use sum::{from_hex, hex};
pub use target::{
    CPU_BACKEND, CompileTarget, DeviceDescription, Processor, VulkanCapability, VulkanProperties, cpu,
};
