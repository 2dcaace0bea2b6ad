//! The programs, as a user runs them.
#![allow(clippy::panic, clippy::print_stderr, clippy::print_stdout, clippy::unwrap_used, missing_docs)]

mod batch;
mod bundle;
mod cache;
mod chat;
mod config;
mod generate;
mod hub;
mod inspect;
mod interrupted;
mod merge;
mod quantize;
mod score;
mod server;
#[path = "../../tests/support/mod.rs"]
mod support;
mod tune;
mod verify;
mod working_directory;
