//! IREE's runtime as safe types: devices, buffers and programs. The runtime is of the release
//! [`RELEASE`](mlxcel_iree_target::RELEASE): that of the sources in `mlxcel-iree-sys`, and the only one that
//! its build script lets through as a distribution.
//!
//! A [`Device`] has [`Buffer`]s and runs the [`Function`]s of a [`Program`], a `vmfb` of IREE's compiler. The
//! features `cuda` and `vulkan` add drivers to the processor's own.
//!
//! Every object of the C side is owned by a handle, which gives its reference back exactly once; every status
//! is consumed exactly once. Nothing here prints. What the C side takes on trust is checked before it gets
//! there: ranges, sizes, alignment, devices, the number of arguments. The machine code of a program is the
//! exception: see [`Program::load`].
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod affinity;
#[allow(unsafe_code, reason = "calls the C library")]
mod allocation;
#[allow(unsafe_code, reason = "calls the C library")]
mod argument;
#[allow(unsafe_code, reason = "calls the C library")]
mod buffer;
#[allow(unsafe_code, reason = "calls the C library")]
mod device;
#[allow(unsafe_code, reason = "calls the C library")]
mod handle;
mod lent;
#[allow(unsafe_code, reason = "calls the C library")]
mod memory;
#[allow(unsafe_code, reason = "calls the C library")]
mod profile;
#[allow(unsafe_code, reason = "calls the C library")]
mod program;
#[allow(unsafe_code, reason = "calls the C library")]
mod status;
mod sys;

#[cfg(test)]
#[allow(unsafe_code, reason = "calls the C library")]
mod memory_tests;
#[cfg(test)]
#[allow(unsafe_code, reason = "calls the C library")]
mod tests;

pub use affinity::Affinity;
pub use argument::{Argument, Constants};
pub use buffer::Buffer;
pub use device::{Accelerators, Device, DeviceOptions, Driver, ListedDevice};
pub use memory::{ALIGNMENT, HostMemory, MappedFile, copying_threads};
pub use profile::{DispatchEvent, Events};
pub use program::{CallError, Function, Output, Program};
