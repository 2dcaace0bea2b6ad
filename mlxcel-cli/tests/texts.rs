//! The programs `embed` and `rerank`, as a user runs them.
#![cfg(feature = "portable")]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

/// Status, output and error of `mlxcel` with the lines of `input`.
fn run(arguments: &[&str], input: &str) -> (Option<i32>, String, String) {
    let mut program = Command::new(env!("CARGO_BIN_EXE_mlxcel"));
    program.args(arguments).args(["--backend", "portable"]);
    program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = program.spawn().unwrap();
    // It may end before it has read all.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn blank_lines_are_not_embedded() {
    let (status, out, err) = run(&["embed", "--json"], "a fox\n\n  \na duck\n");
    assert_eq!((status, out.lines().count()), (Some(0), 2), "{err}");
}

#[test]
fn documents_are_ranked_by_their_scores() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("fixtures/encoders");
    let model = fixtures.join("bert-reranker");
    let common = ["rerank", "--model", model.to_str().unwrap(), "--json", "where are ships safe?"];
    let documents = ["Harbours protect ships.", "Cats sleep a lot.", "Ships sink in storms."];
    let ranked = |more: &[&str], input: &str| {
        let (status, out, err) = run(&[&common[..], more].concat(), input);
        assert_eq!(status, Some(0), "{err}");
        out.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>()
    };
    let found = ranked(&documents, "");
    let scores: Vec<f64> = found.iter().map(|document| document["score"].as_f64().unwrap()).collect();
    assert!(scores.len() == 3 && scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
    for document in &found {
        let index = document["index"].as_u64().unwrap() as usize;
        assert_eq!(document["text"], documents[index]);
    }
    assert_eq!(ranked(&[], &format!("{}\n\n", documents.join("\n"))), found);
    for document in ranked(&[&["--probabilities"], &documents[..]].concat(), "") {
        assert!((0.0..=1.0).contains(&document["score"].as_f64().unwrap()), "{document}");
    }
    let encoder = fixtures.join("bert");
    let (status, _, err) = run(&["rerank", "--model", encoder.to_str().unwrap(), "a", "b"], "");
    assert!(status == Some(2) && err.contains("reranker") && err.lines().count() == 1, "{err}");
}
