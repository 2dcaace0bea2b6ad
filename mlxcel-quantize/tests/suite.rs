//! Quantized and merged copies of checkpoints.
#![allow(clippy::panic, clippy::unwrap_used, missing_docs)]

mod merge;
mod quantize;
