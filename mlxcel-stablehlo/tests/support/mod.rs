//! What several test files need: the stock compiler.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]
#![allow(clippy::panic, reason = "a test fails by it")]
#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

pub mod random;
pub mod refusal;
pub mod samples;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use mlxcel_stablehlo::{BinaryOp, UnaryOp};

/// The stock compiler: `MLXCEL_IREE_COMPILER`, or the one that `cargo xtask setup` provisions; `None`, with a
/// message, where there is neither.
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

/// The separator between programs that the compiler accepts in one run.
const SEPARATOR: &str = "// -----\n";

/// Has the compiler read and verify each of `texts`: each operation's result types against those that it
/// infers itself. One outcome for each: `Err` with what the compiler says first.
pub fn verify(compiler: &Path, texts: &[String]) -> Vec<Result<(), String>> {
    // Asked for no phase at all, the compiler reads and verifies a program, and then complains of just that.
    const NOTHING_TO_DO: &str = "compile-from phase start must precede compile-to phase start";
    let arguments = ["--compile-to=start", "--split-input-file"];
    let said = run(compiler, &arguments, &texts.join(SEPARATOR)).err().unwrap_or_default();
    let mut line = 1;
    texts
        .iter()
        .map(|text| {
            // Messages name the line at which the part starts: that of the separator in front, or the first.
            let place = format!("within split at <stdin>:{line} ");
            line += text.lines().count() + usize::from(line > 1);
            let first = said.lines().find(|line| line.starts_with(&place) && line.contains("error: "));
            match first {
                Some(message) if message.contains(NOTHING_TO_DO) => Ok(()),
                Some(message) => Err(message.to_owned()),
                None => panic!("the compiler has no word on the program at {line}: {}", first_lines(&said)),
            }
        })
        .collect()
}

/// Has the compiler read, verify and lower `texts` to the dialects that it generates code from.
///
/// # Errors
/// What the compiler says.
pub fn lower(compiler: &Path, texts: &[String]) -> Result<(), String> {
    let arguments = ["--compile-to=input", "--iree-input-type=stablehlo", "--split-input-file"];
    run(compiler, &arguments, &texts.join(SEPARATOR))
}

fn run(compiler: &Path, arguments: &[&str], text: &str) -> Result<(), String> {
    let mut child = Command::new(compiler)
        .args(arguments)
        .args(["-", "-o", "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let mut stdin = child.stdin.take().ok_or("no standard input")?;
    let text = text.to_owned();
    // A compiler that rejects the program may not read all of it: its own words say more than the broken
    // pipe.
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    let _ = writer.join();
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// The beginning of a compiler's output, which contains whole programs.
pub fn first_lines(text: &str) -> String {
    text.lines().take(4).map(|line| line.chars().take(300).collect::<String>() + "\n").collect()
}

/// The name of every operation.
pub fn every_operation() -> impl Iterator<Item = &'static str> {
    let names = [
        "constant", "iota", "reshape", "broadcast_in_dim", "transpose", "convert", "bitcast_convert",
        "slice", "dynamic_slice", "concatenate", "pad", "gather", "scatter", "compare", "select", "clamp",
        "reduce", "reduce_argmax", "dot_general", "while", "composite", "call", "custom_call",
    ];
    let unary = UnaryOp::ALL.into_iter().map(UnaryOp::name);
    names
        .into_iter()
        .chain(["dynamic_update_slice"])
        .chain(unary)
        .chain(BinaryOp::ALL.into_iter().map(BinaryOp::name))
}
