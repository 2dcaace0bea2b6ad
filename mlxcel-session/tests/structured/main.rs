//! Texts that follow grammars, from a model that knows nothing: its logits are drawn by chance.
#![allow(clippy::panic, clippy::print_stdout, clippy::unwrap_used, missing_docs, unreachable_pub)]

mod bounds;
mod generations;
mod harness;
mod masks;
mod schemas;
mod suite;
mod tools;
