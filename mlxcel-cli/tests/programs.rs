//! The programs, as a user runs them.
#![allow(clippy::panic, clippy::print_stderr, clippy::print_stdout, clippy::unwrap_used, missing_docs)]

#[path = "../../tests/support/adapter.rs"]
mod adapter;
mod batch;
mod blocks;
mod bundle;
mod cache;
mod chat;
mod config;
mod documented;
mod generate;
mod hub;
mod inspect;
mod interrupted;
mod log;
mod merge;
mod model;
mod program;
mod quantize;
mod score;
mod server;
#[path = "../../tests/support/mod.rs"]
mod support;
mod texts;
mod tune;
mod verify;
mod working_directory;

/// Whether these tests ignore interrupts, as what a shell runs in the background does: child processes inherit
/// that.
#[cfg(all(unix, any(feature = "iree", feature = "portable")))]
fn ignores_interrupts() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap_or("0");
    u64::from_str_radix(mask.trim(), 16).unwrap() & (1 << (2 - 1)) != 0
}
