//! The MLX engine against oracles, and its build script.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, missing_docs)]

mod architectures;
mod build_script;
mod oracles;
mod support;
