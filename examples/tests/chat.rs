//! The program `chat`, as a user runs it through a pipe.
#![cfg(feature = "portable")]
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::process::{Command, Stdio};

#[test]
fn each_line_is_answered_until_an_empty_one() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_chat"))
        .args(["--backend", "portable"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = "Tell me a story about a duck named Nell.\nWhat did Nell find?\n\nNobody hears this.\n";
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
    let answers = String::from_utf8(output.stdout).unwrap();
    let answers: Vec<&str> = answers.lines().collect();
    assert_eq!(answers.len(), 2, "{answers:?}");
    assert!(answers.iter().all(|answer| answer.contains("Nell")), "{answers:?}");
}
