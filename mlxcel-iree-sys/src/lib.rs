//! IREE's runtime, built from source, and its bindings: the base of the engine [mlxcel-iree](https://docs.rs/mlxcel-iree).
//!
//! The package contains the C sources of release [`VERSION`]. Building them needs only a C compiler: no
//! CMake, no libclang, no Python. They are the part of IREE that runs compiled programs on CPUs (devices
//! `local-sync` and `local-task`, loaders for embedded ELF files and system libraries) and, by features, the
//! drivers `cuda` and `vulkan`.
//!
//! The bindings use IREE's function names. In the archive, functions are renamed (`mlxcel_iree_…`) and
//! hidden, so a program can link a second IREE, and a shared library that contains this one exports none of
//! it.
//!
//! The bindings cover what mlxcel uses. They were generated on Linux for 64-bit platforms; the C compiler
//! checks size and layout of every type when it builds the archive.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![no_std]
#![deny(unsafe_code)]

// Generated; `cargo xtask test --only generated` checks that it is up to date.
#[rustfmt::skip]
#[allow(
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unsafe_code,
    unreachable_pub,
    reason = "generated from headers in C"
)]
mod bindings;

pub use bindings::*;

/// The IREE release of the sources and bindings.
pub const VERSION: &str = "3.13.0";
