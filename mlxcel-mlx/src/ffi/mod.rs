//! MLX's C++ API as safe functions. All `unsafe` code of the crate is below this module.
//!
//! * [`bridge`] declares the C++ functions of `cpp/bridge.h`. Every one that may throw answers a `Result`; an
//!   exception is caught on the C++ side and becomes text (`cpp/bridge.h` says how).
//! * [`error`] turns that text into an [`Error`](mlxcel_core::Error) of the right kind.
//! * [`kernels`] declares those of `cpp/primitives/kernels.h`, which our own kernels compute.
//! * [`region`] is Rust memory that MLX reads where it is.
//! * [`nullable`] gives functions with optional arguments a safe face.
//!
//! A `Tensor` is reached through [`cxx::UniquePtr`], which is neither `Send` nor `Sync`: MLX's streams belong to
//! threads.

mod bridge;
mod error;
#[cfg_attr(not(test), allow(dead_code, unused_imports, reason = "tests alone choose among instruction sets"))]
pub(crate) mod kernels;
mod nullable;
mod region;

pub(crate) use bridge::sys;
pub(crate) use error::{Caught, check};
pub(crate) use nullable::*;
pub(crate) use region::from_shared;

/// An array of MLX, owned.
pub(crate) type Handle = cxx::UniquePtr<sys::Tensor>;
