//! Rust toolchains beside the one that runs us, by rustup.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::process;

/// A cargo command of the toolchain `name`.
pub(crate) fn cargo(name: &str) -> Command {
    let mut command = Command::new("rustup");
    // What the cargo that runs us has set names the other toolchain.
    command
        .args(["run", name, "cargo"])
        .env_remove("CARGO")
        .env_remove("RUSTC")
        .env_remove("RUSTUP_TOOLCHAIN");
    command
}

/// Whether the nightly toolchain has the sources of the standard library; an error where there is no such toolchain.
pub(crate) fn nightly_has_sources() -> Result<bool> {
    let sysroot =
        process::output(Command::new("rustup").args(["run", "nightly", "rustc", "--print", "sysroot"]))?;
    Ok(Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/Cargo.lock").is_file())
}
