//! The evaluator, and layers and caches on it.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::single_range_in_vec_init,
    clippy::unwrap_used,
    missing_docs
)]

mod eval_programs;
mod kv_cache;
mod layers;
