//! The builder: types, printed programs, rewriting and misuse.
#![allow(clippy::panic, clippy::unwrap_used)]

mod floats;
mod golden;
mod inference;
mod misuse;
mod random_programs;
mod rewrite;
mod structure;
mod support;
mod wrong_types;
