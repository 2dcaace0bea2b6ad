//! StableHLO programs authored in Rust.

pub mod literal;
pub mod module;
pub mod types;
