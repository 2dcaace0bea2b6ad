//! The program `chat`, as a user runs it through a pipe.
#![cfg(feature = "portable")]
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::process::{Command, Stdio};

/// What `chat` makes of `input`: status, answers and notes.
fn chat(input: &[u8]) -> (Option<i32>, String, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_chat"))
        .args(["--backend", "portable"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // It may end before it has read all.
    let _ = stdin.write_all(input);
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn each_line_is_answered_until_an_empty_one() {
    let lines = "Tell me a story about a duck named Nell.\nWhat did Nell find?\n\nNobody hears this.\n";
    let (status, answers, notes) = chat(lines.as_bytes());
    assert_eq!((status, notes.as_str()), (Some(0), ""));
    let answers: Vec<&str> = answers.lines().collect();
    assert_eq!(answers.len(), 2, "{answers:?}");
    assert!(answers.iter().all(|answer| answer.contains("Nell")), "{answers:?}");
}

#[test]
fn a_full_context_forgets_the_oldest_turns_and_a_line_beyond_it_is_told() {
    // Each of the long lines takes more than half of the context of 1024 tokens.
    let long = "Tell me a story about a duck named Nell. ".repeat(48);
    let lines = format!("{long}\n{long}\n{}\nTell me a story about a duck named Nell.\n", long.repeat(40));
    let (status, answers, notes) = chat(lines.as_bytes());
    assert_eq!(status, Some(1), "{notes}");
    assert_eq!(answers.lines().count(), 3, "{answers}");
    let notes: Vec<&str> = notes.lines().collect();
    assert!(notes.contains(&"note: the context is full, and turns were forgotten: 1"), "{notes:?}");
    assert!(
        notes
            .iter()
            .any(|note| note.starts_with("note: tokenize: the prompt is longer than the context holds")),
        "{notes:?}"
    );
    assert_eq!(notes.last(), Some(&"error: 1 of the lines got no answer"));
}

#[test]
fn input_that_is_no_text_is_named_as_such() {
    let (status, answers, notes) = chat(b"Hello \xff\n");
    assert_eq!((status, answers.as_str()), (Some(2), ""));
    assert!(notes.starts_with("error: read the prompt from standard input: it is not UTF-8"), "{notes}");
}
