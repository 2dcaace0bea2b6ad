//! Summarizes the diagnostics of a failed compiler.

use std::fmt;
use std::process::ExitStatus;

use mlxcel_core::ErrorKind;
use mlxcel_iree_target::process::Finished;

use crate::diagnostics::shorten;

/// How many lines of the compiler's output an error keeps.
const LINES: usize = 12;
/// How long a line may be; a diagnostic about an operation with constants carries the constants.
const LINE: usize = 400;

/// The beginning of what the compiler printed; the source of the error that reports its failure.
#[derive(Debug)]
pub(super) struct CompilerOutput(String);

impl fmt::Display for CompilerOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CompilerOutput {}

/// The kind of failure, its first diagnostic, and the lines around that.
pub(super) fn describe(finished: &Finished) -> (ErrorKind, String, CompilerOutput) {
    let output = if finished.stderr.trim().is_empty() { &finished.stdout } else { &finished.stderr };
    let lines: Vec<&str> = output.lines().filter(|line| !line.trim().is_empty()).collect();
    let first = lines
        .iter()
        .position(|line| line.contains(": error:"))
        .or_else(|| lines.iter().position(|line| line.contains("LLVM ERROR:")))
        .unwrap_or_default();
    let excerpt: Vec<String> = lines.iter().skip(first).take(LINES).map(|line| shorten(line, LINE)).collect();
    let kind = if runs_out(output) { ErrorKind::ResourceExhausted } else { ErrorKind::Compile };
    let message = match (death(finished.status), excerpt.first()) {
        (Some(death), _) => death,
        (None, Some(diagnostic)) => diagnostic.trim().to_owned(),
        (None, None) => format!("the compiler failed without a message ({})", finished.status),
    };
    (kind, message, CompilerOutput(excerpt.join("\n")))
}

/// How the compiler died, if it did not end by itself.
#[cfg(unix)]
fn death(status: ExitStatus) -> Option<String> {
    use std::os::unix::process::ExitStatusExt;
    const KILL: i32 = 9;
    status.signal().map(|signal| match signal {
        KILL => "the compiler was killed by signal 9; the system does that when memory runs out".to_owned(),
        _ => format!("the compiler was killed by signal {signal}"),
    })
}

#[cfg(not(unix))]
fn death(_status: ExitStatus) -> Option<String> {
    None
}

/// Whether the words are those of a full disk or memory.
fn runs_out(output: &str) -> bool {
    [
        "No space left on device",
        "Disk quota exceeded",
        "Cannot allocate memory",
        "LLVM ERROR: out of memory",
        "bad_alloc",
    ]
    .iter()
    .any(|words| output.contains(words))
}
