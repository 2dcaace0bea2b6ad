//! The program `verify`, as a user runs it: engines that agree, a Python that does not, bad arguments.

use crate::program::{Run, mlxcel};
use crate::support::Fixture;

fn verify(arguments: &[&str]) -> Run {
    let mut command = mlxcel(&["verify"]);
    Run::of(command.args(arguments).env("MLXCEL_CACHE_DIR", env!("CARGO_TARGET_TMPDIR")))
}

#[cfg(all(feature = "portable", feature = "iree"))]
#[test]
fn the_engines_that_are_compiled_in_agree_on_the_bundled_model() {
    let out = verify(&["-n", "8"]).printed();
    assert!(out.contains("transformers was skipped: the bundled model is not a folder"), "{out}");
    assert!(out.trim_end().ends_with("they agree"), "{out}");
}

#[test]
fn bad_arguments_and_folders_are_status_2() {
    for arguments in [
        &["--model", "/no/such/folder"][..],
        &["-n", "0"],
        &["-n", "5000"],
        &["--backend", "abacus"],
        &["--prompt", ""],
    ] {
        verify(arguments).refused(2, &[]);
    }
}

/// Runs against a Python that answers as the script of `verify` does, with these tokens and the numbers of
/// the fixture's oracle.
#[cfg(all(unix, feature = "portable"))]
fn verify_against(tokens: &[u32]) -> Run {
    let fixture = Fixture::storyteller();
    let case = &fixture.cases()[0];
    let n = tokens.len();
    let answer = serde_json::json!([{
        "tokens": tokens,
        "logprobs": case.logprobs[..n],
        "margins": case.margins[..n],
        "prefill_logits": case.prefill_logits,
    }]);
    let folder = tempfile::tempdir().unwrap();
    let python = folder.path().join("python");
    crate::support::write_script(
        &python,
        &format!("#!/bin/sh\ncat > /dev/null\ncat <<'END'\n{answer}\nEND\n"),
    );
    let prompt: Vec<_> = case.prompt.iter().map(u32::to_string).collect();
    verify(&[
        "--model",
        fixture.path.to_str().unwrap(),
        "--backend",
        "portable",
        "--tokens",
        &prompt.join(","),
        "-n",
        &n.to_string(),
        "--python",
        python.to_str().unwrap(),
    ])
}

#[cfg(all(unix, feature = "portable"))]
#[test]
fn transformers_output_is_the_reference() {
    let greedy = &Fixture::storyteller().cases()[0].greedy[..8];
    let Run { status, out, err } = verify_against(greedy);
    assert_eq!(status, 0, "{out}{err}");
    assert!(out.contains("transformers and portable") && out.trim_end().ends_with("they agree"), "{out}");

    let mut wrong = greedy.to_vec();
    wrong[5] += 1;
    let Run { status, out, err } = verify_against(&wrong);
    assert_eq!((status, err.as_str()), (1, "error: portable and transformers disagree\n"));
    assert!(out.contains("step 5: ") && out.contains("FAILED"), "{out}");
}

#[cfg(feature = "portable")]
#[test]
fn a_named_python_must_run() {
    let fixture = Fixture::storyteller();
    let run = verify(&["--model", fixture.path.to_str().unwrap(), "--python", "/no/such/python"]);
    assert_eq!(run.status, 1, "{run:?}");
    assert!(run.err.starts_with("error: ask transformers: /no/such/python was not started"), "{run:?}");
}
