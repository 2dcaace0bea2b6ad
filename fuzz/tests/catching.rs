//! What must be caught is caught, and told apart.
#![allow(clippy::unwrap_used, missing_docs)]

use std::fs;
use std::process::Command;

/// Runs an input of the target that ends as it is told; what is said of it, and whether all was well.
fn once(input: &str) -> (String, bool) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("input");
    fs::write(&path, input).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_mlxcel-fuzz"));
    let output = command.args(["once", "broken"]).arg(path).output().unwrap();
    (String::from_utf8_lossy(&output.stderr).into_owned(), output.status.success())
}

#[test]
fn panics_overflows_memory_and_endless_loops_are_findings() {
    for (input, kind) in
        [("panic", "panic"), ("stack", "stack overflow"), ("memory", "memory"), ("hang", "hang")]
    {
        let (said, well) = once(input);
        assert!(!well && said.starts_with(&format!("{kind}: ")), "{input}: {said}");
    }
    assert_eq!(once("anything else"), (String::new(), true));
}
