//! The IREE runtime as safe types: devices, buffers and programs. The runtime is of the release
//! [`RELEASE`](mlxcel_iree_target::RELEASE): that of the sources in `mlxcel-iree-sys`, and the only one that
//! its build script lets through as a distribution.
//!
//! This is the crate's only module with `unsafe` code. Every object of the C side is owned by a
//! [`handle::Handle`], which gives its reference back exactly once; every status is consumed exactly once, in
//! [`status`]. Nothing here prints. What the C side takes on trust is checked before it gets there: ranges,
//! sizes, alignment, devices, the number of arguments. The machine code of a program is the exception; see
//! [`Program::load`].

mod allocation;
mod argument;
mod buffer;
mod device;
mod handle;
mod lent;
mod memory;
mod profile;
mod program;
mod status;
mod sys;

#[cfg(test)]
mod memory_tests;
#[cfg(test)]
mod tests;

pub(crate) use argument::{Argument, Constants};
pub(crate) use buffer::Buffer;
pub(crate) use device::{Accelerators, Device, DeviceOptions, Driver, ListedDevice};
pub(crate) use memory::{ALIGNMENT, HostMemory, MappedFile, copying_threads};
pub(crate) use profile::{DispatchEvent, Events};
pub(crate) use program::{CallError, Function, Program};
