//! MLX's C++ API as safe functions. All `unsafe` code of the crate is below this module.
//!
//! * [`bridge`] declares the C++ functions of `cpp/bridge.h`. Each one that may throw returns a `Result`; an
//!   exception is caught on the C++ side and becomes text (see `cpp/bridge.h`).
//! * [`error`] converts that text to an [`Error`](mlxcel_core::Error) of the right kind.
//! * [`kernels`] declares the functions of `cpp/primitives/kernels.h`, our own kernels.
//! * [`region`] is Rust memory that MLX reads in place.
//! * [`nullable`] gives functions with optional arguments a safe interface.
//!
//! A `Tensor` is accessed through [`cxx::UniquePtr`], which is neither `Send` nor `Sync`: MLX's streams
//! belong to threads.

mod bridge;
mod error;
#[cfg_attr(not(test), allow(dead_code, unused_imports, reason = "only tests choose among instruction sets"))]
pub(crate) mod kernels;
mod nullable;
mod region;

pub(crate) use bridge::sys;
pub(crate) use error::{Caught, check};
pub(crate) use nullable::*;
pub(crate) use region::from_shared;

/// An array of MLX, owned.
pub(crate) type Handle = cxx::UniquePtr<sys::Tensor>;
