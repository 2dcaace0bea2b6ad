//! The programs `embed` and `rerank`, as a user runs them.
#![cfg(feature = "portable")]

use serde_json::Value;

use crate::program::{Run, fixture, mlxcel};

/// `mlxcel` with the lines of `input`.
fn run(arguments: &[&str], input: &str) -> Run {
    Run::with_input(mlxcel(arguments).args(["--backend", "portable"]), input.as_bytes())
}

#[test]
fn blank_lines_are_not_embedded() {
    let printed = run(&["embed", "--json"], "a fox\n\n  \na duck\n").printed();
    assert_eq!(printed.lines().count(), 2);
}

#[test]
fn documents_are_ranked_by_their_scores() {
    let model = fixture("encoders/bert-reranker");
    let common = ["rerank", "--model", model.to_str().unwrap(), "--json", "where are ships safe?"];
    let documents = ["Harbours protect ships.", "Cats sleep a lot.", "Ships sink in storms."];
    let ranked = |more: &[&str], input: &str| {
        let printed = run(&[&common[..], more].concat(), input).printed();
        printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>()
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
    let encoder = fixture("encoders/bert");
    run(&["rerank", "--model", encoder.to_str().unwrap(), "a", "b"], "").refused(2, &["reranker"]);
}
