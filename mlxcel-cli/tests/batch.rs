//! The program `batch`, as a user runs it.
#![cfg(feature = "portable")]

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::program::{Run, fixture, mlxcel};

fn batch(prompts: &Path, out: &Path, arguments: &[&str]) -> Run {
    let mut program = mlxcel(&["batch", "--backend", "portable", "--precision", "exact", "--context", "64"]);
    Run::of(program.args(["-n", "5", "--out"]).arg(out).args(arguments).arg(prompts))
}

/// A folder with the file `prompts` of these lines, that file, and a place for answers.
fn place(lines: &str) -> (TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let (prompts, out) = (folder.path().join("prompts"), folder.path().join("answers"));
    fs::write(&prompts, lines).unwrap();
    (folder, prompts, out)
}

#[test]
fn an_interrupted_batch_resumes_behind_its_answers() {
    let lines: Vec<String> = (0..7).map(|n| format!("Once there were {n} foxes.")).collect();
    // A prompt beyond the context is an answer with an error.
    let (_folder, prompts, out) = place(&format!("{}\n{}\n", lines.join("\n"), "long ".repeat(100)));
    let output = batch(&prompts, &out, &[]);
    assert_eq!(output.status, 0, "{}", output.err);
    let whole = fs::read_to_string(&out).unwrap();
    let answers: Vec<&str> = whole.lines().collect();
    assert_eq!(answers.len(), 8);
    assert!(answers.iter().enumerate().all(|(n, answer)| answer.starts_with(&format!("{{\"index\":{n},"))));
    assert!(answers[7].contains("\"error\""), "{}", answers[7]);
    // Cut off within the fourth answer.
    fs::write(&out, &whole[..answers[..3].iter().map(|answer| answer.len() + 1).sum::<usize>() + 9]).unwrap();
    let run = batch(&prompts, &out, &["--resume"]);
    assert_eq!(run.status, 0);
    assert_eq!(fs::read_to_string(&out).unwrap(), whole);
    assert!(run.err.starts_with("4 of 5 prompts"), "{run:?}");
    // An error of a prompt stays; one that may pass does not, nor do the answers after it.
    for (earlier, retried) in [
        (whole.clone(), "0 of 0 prompts"),
        (whole.replace("capacity exceeded\"}", "device fault\"}"), "0 of 1 prompts"),
        (whole.replace(answers[3], r#"{"index":3,"error":"lost","kind":"device fault"}"#), "4 of 5 prompts"),
    ] {
        fs::write(&out, earlier).unwrap();
        let run = batch(&prompts, &out, &["--resume"]);
        assert_eq!(fs::read_to_string(&out).unwrap(), whole);
        assert!(run.err.starts_with(retried), "{retried}: {run:?}");
    }
    // What is no answer is left alone.
    for diary in ["my diary\n", "my diary"] {
        fs::write(&out, diary).unwrap();
        assert_eq!(batch(&prompts, &out, &["--resume"]).status, 2);
        assert_eq!(fs::read_to_string(&out).unwrap(), diary);
    }
}

#[test]
fn each_prompt_has_a_seed_of_its_own_unless_one_is_given() {
    let (_folder, prompts, out) = place(&"Once there was a fox.\n".repeat(2));
    let texts = |arguments: &[&str]| {
        let sampled = ["--temperature", "100", "--force"];
        let output = batch(&prompts, &out, &[&sampled[..], arguments].concat());
        assert_eq!(output.status, 0, "{}", output.err);
        let answers = fs::read_to_string(&out).unwrap();
        let text = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["text"].to_string();
        answers.lines().map(text).collect::<Vec<_>>()
    };
    let (drawn, given) = (texts(&[]), texts(&["--seed", "7"]));
    assert_ne!(drawn[0], drawn[1]);
    assert_eq!(given[0], given[1]);
    assert_eq!(given, texts(&["--seed", "7"]));
}

#[test]
fn earlier_answers_stay_until_the_model_is_ready() {
    let (_folder, prompts, out) = place("Once there was a fox.\n");
    let earlier = "earlier answers, longer than those to come\n".repeat(100);
    fs::write(&out, &earlier).unwrap();
    for wrong in [["--model", "/there/is/no/model"], ["--temperature", "-1"]] {
        assert_eq!(batch(&prompts, &out, &wrong).status, 2, "{wrong:?}");
        assert_eq!(fs::read_to_string(&out).unwrap(), earlier, "{wrong:?}");
    }
    assert_eq!(batch(&prompts, &out, &["--force"]).status, 0);
    let answers = fs::read_to_string(&out).unwrap();
    assert!(answers.starts_with("{\"index\":0,") && answers.lines().count() == 1, "{answers}");
    #[cfg(unix)]
    assert_eq!(batch(&prompts, Path::new("/dev/null"), &[]).status, 0);
}

#[test]
fn neither_the_prompts_nor_earlier_answers_are_overwritten() {
    let (folder, prompts, out) = place("Once there was a fox.\n");
    fs::write(&out, "my diary\n").unwrap();
    batch(&prompts, &out, &[]).refused(2, &["answers", "--resume", "--force"]);
    assert_eq!(fs::read_to_string(&out).unwrap(), "my diary\n");
    for own in [&[][..], &["--force"], &["--resume"]] {
        batch(&prompts, &prompts, own).refused(2, &["prompts"]);
        #[cfg(unix)]
        {
            let link = folder.path().join("link");
            if own.is_empty() {
                std::os::unix::fs::symlink(&prompts, &link).unwrap();
            }
            batch(&prompts, &link, own).refused(2, &["link"]);
        }
    }
    assert_eq!(fs::read_to_string(&prompts).unwrap(), "Once there was a fox.\n");
    fs::write(&out, "").unwrap();
    assert_eq!(batch(&prompts, &out, &[]).status, 0);
}

#[test]
fn a_model_that_cannot_generate_is_refused_before_answers_begin() {
    let (_folder, prompts, out) = place("Once there was a fox.\n");
    for (model, word) in [("encoders/bert", "mlxcel embed"), ("architectures/llama", "tokenizer")] {
        batch(&prompts, &out, &["--model", fixture(model).to_str().unwrap()]).refused(2, &[word]);
        assert_eq!(fs::read_to_string(&out).unwrap(), "", "{model}");
    }
}

#[test]
fn objects_are_recognised_after_spaces_and_byte_order_marks() {
    let object = "{\"prompt\": \"Once there was a fox.\"}";
    let lines = format!("\u{feff}{object}\n  {object}\n{object}\nOnce there was a fox.\n");
    let (_folder, prompts, out) = place(&lines);
    assert_eq!(batch(&prompts, &out, &[]).status, 0);
    let answers = fs::read_to_string(&out).unwrap();
    let tokens =
        |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["prompt_tokens"].clone();
    let tokens: Vec<_> = answers.lines().map(tokens).collect();
    assert!(tokens.len() == 4 && tokens.iter().all(|count| *count == tokens[3]), "{answers}");
}

#[test]
fn invalid_lines_are_reported_with_file_line_and_key() {
    let (_folder, prompts, out) = place("");
    for (line, word) in [
        (&b"{\"promt\": \"a\"}"[..], "\"promt\""),
        (b"{\"prompt\": \"a\", \"n\": 1}", "\"n\""),
        (b"{\"prompt\": 1}", "prompt"),
        (b"{\"messages\": 1}", "messages"),
        (b"{\"prompt\": \"a\"", "JSON"),
        (b"{}", "prompt"),
        (b"\xff", "UTF-8"),
    ] {
        fs::write(&prompts, [b"\nOnce there was a fox.\n", line].concat()).unwrap();
        batch(&prompts, &out, &[]).refused(2, &["prompts:3: ", word]);
    }
    #[cfg(target_os = "linux")]
    {
        fs::write(&prompts, "Once there was a fox.\n").unwrap();
        let run = batch(&prompts, Path::new("/dev/full"), &[]);
        assert!(run.status == 1 && run.err.contains("write /dev/full"), "{run:?}");
    }
}
