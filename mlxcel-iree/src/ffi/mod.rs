//! The IREE runtime as safe types: devices, buffers and programs. And what starting a compiler takes from the
//! operating system by hand ([`child`]).
//!
//! This is the crate's only module with `unsafe` code. Every object of the C side is owned by a [`handle::Handle`],
//! which gives its reference back exactly once; every status is consumed exactly once, in [`status`]. Nothing here
//! prints. What the C side takes on trust is checked before it gets there: ranges, sizes, alignment, devices, the number
//! of arguments. The machine code of a program is the exception; see [`Program::load`].

mod allocation;
mod argument;
mod buffer;
pub(crate) mod child;
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
pub(crate) use device::{Device, DeviceOptions, Driver};
pub(crate) use memory::{ALIGNMENT, HostMemory};
pub(crate) use profile::DispatchEvent;
pub(crate) use program::{CallError, Function, Program};

/// The commit of that release in IREE's repository, as its compiler states it.
pub(crate) const COMMIT: &str = "89ece87b89852100c0a4ac3d515e14842d090967";

/// The release of the IREE runtime that is linked: the one whose sources `eerie-sys` 0.5.0 contains, and the only one that
/// `build/version.rs` lets through as a distribution.
pub(crate) fn revision() -> &'static str {
    "3.13.0"
}
