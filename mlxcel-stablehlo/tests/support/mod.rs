//! What several test files need: the stock compiler.

#![allow(dead_code, reason = "each test file uses a part")]

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The stock compiler: `MLXCEL_IREE_COMPILER`, or the one that `cargo xtask setup` provisions; `None`, said aloud, where
/// there is neither.
pub fn stock_compiler() -> Option<PathBuf> {
    let named = std::env::var_os("MLXCEL_IREE_COMPILER").map(PathBuf::from);
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let candidates = named.into_iter().chain([root.join(".toolchain/bin/iree-compile")]);
    let found = candidates.into_iter().find(|path| path.is_file());
    if found.is_none() {
        eprintln!("skipped: no iree-compile (set MLXCEL_IREE_COMPILER or run `cargo xtask setup`)");
    }
    found
}

/// Has the compiler read, verify and (for programs that it knows how to run) lower `text`.
///
/// # Errors
/// What the compiler says.
pub fn compile(compiler: &PathBuf, text: &str) -> Result<(), String> {
    let mut child = Command::new(compiler)
        .args(["--compile-to=input", "--iree-input-type=stablehlo", "-", "-o", "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let mut stdin = child.stdin.take().ok_or("no standard input")?;
    let text = text.to_owned();
    // A compiler that rejects the program may not read all of it: its own words say more than the broken pipe.
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    let _ = writer.join();
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}
