//! Generation under grammars, with a model of random logits.
#![allow(clippy::panic, clippy::print_stdout, clippy::unwrap_used, missing_docs, unreachable_pub)]

mod bounds;
mod generations;
mod harness;
mod masks;
mod schemas;
mod suite;
mod tools;
