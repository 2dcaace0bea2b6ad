//! Engines against oracles, against each other and against the contract; and the book's programs.
#![allow(
    clippy::expect_used, clippy::panic, clippy::print_stderr, clippy::print_stdout, clippy::unwrap_used,
    missing_docs
)]

mod adapters;
mod architectures;
/// What the tests of `mlxcel-models` share with these; the walk names values by this path.
#[path = "../mlxcel-models/tests/common"]
mod common {
    pub(crate) mod draft_heads;
    pub(crate) mod values;
}
mod conformance;
mod descriptions;
mod differential;
mod draft_heads;
mod drafts;
mod eagle3;
mod encoders;
mod examples;
mod format_pairs;
mod formats;
mod gguf;
mod hidden;
mod load;
#[path = "../mlxcel-models/tests/naive/mod.rs"]
mod naive;
mod oracles;
mod published;
mod same_text;
mod settings;
mod support;
