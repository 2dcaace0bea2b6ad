//! The programs `score` and `embed`, as a user runs them, on the bundled model.
#![cfg(feature = "portable")]

use serde_json::Value;

use crate::program::{Run, mlxcel};

fn score(arguments: &[&str]) -> Run {
    Run::of(mlxcel(&["score", "--backend", "portable"]).args(arguments))
}

fn embed(arguments: &[&str]) -> Run {
    Run::of(mlxcel(&["embed", "--backend", "portable"]).args(arguments))
}

#[track_caller]
fn lines(run: Run) -> Vec<String> {
    run.printed().lines().map(str::to_owned).collect()
}

#[test]
fn scores_match_those_of_transformers() {
    // The only case of the oracle that is a text, with what follows it.
    let case = &crate::support::Fixture::storyteller().cases()[4];
    let text = format!("Once upon a time there was a{}", case.completion);
    let scored = score(&["--precision", "exact", "--text", &text, "--json", "--top", "1"]).json();
    let numbers = |name: &str| -> Vec<f64> {
        scored[name].as_array().unwrap().iter().map(|value| value.as_f64().unwrap_or(0.0)).collect()
    };
    let (tokens, logprobs) = (numbers("tokens"), numbers("logprobs"));
    let expected = case.prompt.iter().chain(&case.greedy).take(tokens.len()).map(|&token| f64::from(token));
    assert_eq!(tokens, expected.collect::<Vec<_>>());
    assert!(tokens.len() >= case.prompt.len() + case.greedy.len() - 1);
    for (found, expected) in logprobs[case.prompt.len()..].iter().zip(&case.logprobs) {
        assert!((found - f64::from(*expected)).abs() < 1e-3, "{found} {expected}");
    }
    let sum: f64 = logprobs.iter().sum();
    assert!((scored["logprob"].as_f64().unwrap() - sum).abs() < 1e-3);
    let perplexity = (-sum / (tokens.len() - 1) as f64).exp();
    assert!((scored["perplexity"].as_f64().unwrap() - perplexity).abs() < 1e-3);
    assert_eq!(scored["top"][case.prompt.len()][0]["token"], case.greedy[0]);
}

#[test]
fn score_reads_files_and_prints_perplexity() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text");
    std::fs::write(&path, "Once upon a time there was a frog.").unwrap();
    let shown = lines(score(&["--file", path.to_str().unwrap()]));
    assert!(shown[0].ends_with("text") && shown.iter().any(|line| line.ends_with("\" time\"")), "{shown:?}");
    assert!(shown.last().unwrap().contains("perplexity"));
    // The same in windows of a few tokens is less sure.
    let windowed = lines(score(&["--file", path.to_str().unwrap(), "--context", "4", "--stride", "2"]));
    assert_eq!(windowed.len(), shown.len());
    score(&["--file", "/there/is/no/such/file"]).refused(2, &[]);
}

#[test]
fn the_most_likely_continuation_is_marked() {
    let continuations = ["--continuation", " time", "--continuation", " duck pond"];
    let arguments = [&["--text", "Once upon a"], &continuations[..]].concat();
    let shown = lines(score(&arguments));
    assert!(shown[0].starts_with('*') && shown[1].starts_with(' ') && shown.len() == 2, "{shown:?}");
    let output = score(&[&arguments[..], &["--json"]].concat()).json();
    assert_eq!((&output["best"], &output["continuations"][0]["is_greedy"]), (&0.into(), &true.into()));
}

#[test]
fn similar_texts_have_similar_embeddings() {
    let texts = ["Pip was a brave fox.", "Nell was a brave duck.", "What did Pip find?"];
    let output = lines(embed(&[&texts[..], &["--json"]].concat()));
    let lines_of: Vec<Value> = output.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines_of.len(), 3);
    assert_eq!(lines_of[0]["embedding"].as_array().unwrap().len(), 192);
    let cosine = |a: usize, b: usize| lines_of[a]["cosines"][b].as_f64().unwrap();
    assert!(cosine(1, 0) > cosine(2, 0) && cosine(1, 0) > cosine(2, 1), "{output:?}");
    let table = lines(embed(&texts));
    assert!(table[2].ends_with("What did Pip find?") && table[3].contains("192"), "{table:?}");
    let beyond = "A frog lived near the lake. ".repeat(300);
    assert_eq!(embed(&[&beyond]).status, 2, "more than the context holds");
}
