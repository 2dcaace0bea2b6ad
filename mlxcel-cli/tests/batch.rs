//! The program `batch`, as a user runs it.
#![cfg(feature = "portable")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn batch(prompts: &Path, out: &Path, arguments: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_mlxcel"));
    program.arg("batch");
    program.args(["--backend", "portable", "--precision", "exact", "--context", "64", "-n", "5", "--out"]);
    program.arg(out).args(arguments).arg(prompts).output().unwrap()
}

#[test]
fn an_interrupted_batch_resumes_behind_its_answers() {
    let folder = tempfile::tempdir().unwrap();
    let (prompts, out) = (folder.path().join("prompts"), folder.path().join("answers"));
    let lines: Vec<String> = (0..7).map(|n| format!("Once there were {n} foxes.")).collect();
    // A prompt beyond the context is an answer with an error.
    fs::write(&prompts, format!("{}\n{}\n", lines.join("\n"), "long ".repeat(100))).unwrap();
    let output = batch(&prompts, &out, &[]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let whole = fs::read_to_string(&out).unwrap();
    let answers: Vec<&str> = whole.lines().collect();
    assert_eq!(answers.len(), 8);
    assert!(answers.iter().enumerate().all(|(n, answer)| answer.starts_with(&format!("{{\"index\":{n},"))));
    assert!(answers[7].contains("\"error\""), "{}", answers[7]);
    // Cut off within the fourth answer.
    fs::write(&out, &whole[..answers[..3].iter().map(|answer| answer.len() + 1).sum::<usize>() + 9]).unwrap();
    let output = batch(&prompts, &out, &["--resume"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(fs::read_to_string(&out).unwrap(), whole);
    assert!(String::from_utf8(output.stderr).unwrap().starts_with("4 of 5 prompts"));
    // What is no answer is left alone.
    for diary in ["my diary\n", "my diary"] {
        fs::write(&out, diary).unwrap();
        assert_eq!(batch(&prompts, &out, &["--resume"]).status.code(), Some(2));
        assert_eq!(fs::read_to_string(&out).unwrap(), diary);
    }
}

#[test]
fn earlier_answers_stay_until_the_model_is_ready() {
    let folder = tempfile::tempdir().unwrap();
    let (prompts, out) = (folder.path().join("prompts"), folder.path().join("answers"));
    fs::write(&prompts, "Once there was a fox.\n").unwrap();
    let earlier = "earlier answers, longer than those to come\n".repeat(100);
    fs::write(&out, &earlier).unwrap();
    for wrong in [["--model", "/there/is/no/model"], ["--temperature", "-1"]] {
        assert_eq!(batch(&prompts, &out, &wrong).status.code(), Some(2), "{wrong:?}");
        assert_eq!(fs::read_to_string(&out).unwrap(), earlier, "{wrong:?}");
    }
    assert_eq!(batch(&prompts, &out, &[]).status.code(), Some(0));
    let answers = fs::read_to_string(&out).unwrap();
    assert!(answers.starts_with("{\"index\":0,") && answers.lines().count() == 1, "{answers}");
    #[cfg(unix)]
    assert_eq!(batch(&prompts, Path::new("/dev/null"), &[]).status.code(), Some(0));
}
