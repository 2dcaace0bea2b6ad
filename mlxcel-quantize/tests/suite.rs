//! Quantized and merged copies of checkpoints.
#![allow(clippy::panic, clippy::unwrap_used, missing_docs)]

#[path = "../../tests/support/adapter.rs"]
mod adapter;
mod merge;
mod quantize;
