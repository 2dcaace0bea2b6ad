//! Bindings to IREE's runtime, and the runtime: what the engine of [mlxcel-iree](https://docs.rs/mlxcel-iree) is built on.
//!
//! The C sources of release [`VERSION`] are in the package and are compiled by a C compiler and nothing else: no CMake, no
//! libclang, no Python. They are the part of IREE that runs compiled programs on a processor (`local-sync`, `local-task`, loaders of
//! embedded ELF files and system libraries) and, by features, the drivers `cuda` and `vulkan`.
//!
//! Functions have the names that IREE gives them here, and names of their own (`mlxcel_iree_…`) in the archive, where they are
//! hidden as well: a program may link another IREE, and a shared library with this one in it exports none of it.
//!
//! The bindings hold what mlxcel uses. They were made on Linux for 64-bit platforms; sizes and places of all their types are compared
//! with the C compiler's while the archive is built.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![no_std]
#![deny(unsafe_code)]

// As it was generated: `cargo xtask test --only generated` compares it.
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

/// The release of IREE.
pub const VERSION: &str = "3.13.0";
