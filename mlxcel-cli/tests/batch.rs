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
    // An error of a prompt stays; one that may pass does not, nor do the answers after it.
    for (earlier, retried) in [
        (whole.clone(), "0 of 0 prompts"),
        (whole.replace("capacity exceeded\"}", "device fault\"}"), "0 of 1 prompts"),
        (whole.replace(answers[3], r#"{"index":3,"error":"lost","kind":"device fault"}"#), "4 of 5 prompts"),
    ] {
        fs::write(&out, earlier).unwrap();
        let output = batch(&prompts, &out, &["--resume"]);
        assert_eq!(fs::read_to_string(&out).unwrap(), whole);
        assert!(String::from_utf8(output.stderr).unwrap().starts_with(retried), "{retried}");
    }
    // What is no answer is left alone.
    for diary in ["my diary\n", "my diary"] {
        fs::write(&out, diary).unwrap();
        assert_eq!(batch(&prompts, &out, &["--resume"]).status.code(), Some(2));
        assert_eq!(fs::read_to_string(&out).unwrap(), diary);
    }
}

#[test]
fn each_prompt_has_a_seed_of_its_own_unless_one_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let (prompts, out) = (folder.path().join("prompts"), folder.path().join("answers"));
    fs::write(&prompts, "Once there was a fox.\n".repeat(2)).unwrap();
    let texts = |arguments: &[&str]| {
        let sampled = ["--temperature", "100", "--force"];
        let output = batch(&prompts, &out, &[&sampled[..], arguments].concat());
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
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
    let folder = tempfile::tempdir().unwrap();
    let (prompts, out) = (folder.path().join("prompts"), folder.path().join("answers"));
    fs::write(&prompts, "Once there was a fox.\n").unwrap();
    let earlier = "earlier answers, longer than those to come\n".repeat(100);
    fs::write(&out, &earlier).unwrap();
    for wrong in [["--model", "/there/is/no/model"], ["--temperature", "-1"]] {
        assert_eq!(batch(&prompts, &out, &wrong).status.code(), Some(2), "{wrong:?}");
        assert_eq!(fs::read_to_string(&out).unwrap(), earlier, "{wrong:?}");
    }
    assert_eq!(batch(&prompts, &out, &["--force"]).status.code(), Some(0));
    let answers = fs::read_to_string(&out).unwrap();
    assert!(answers.starts_with("{\"index\":0,") && answers.lines().count() == 1, "{answers}");
    #[cfg(unix)]
    assert_eq!(batch(&prompts, Path::new("/dev/null"), &[]).status.code(), Some(0));
}

/// What a batch says that is refused with status 2.
fn refusal(prompts: &Path, out: &Path, arguments: &[&str]) -> String {
    let output = batch(prompts, out, arguments);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
    said
}

#[test]
fn neither_the_prompts_nor_earlier_answers_are_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let (prompts, out) = (folder.path().join("prompts"), folder.path().join("answers"));
    fs::write(&prompts, "Once there was a fox.\n").unwrap();
    fs::write(&out, "my diary\n").unwrap();
    let said = refusal(&prompts, &out, &[]);
    assert!(said.contains("answers") && said.contains("--resume") && said.contains("--force"), "{said}");
    assert_eq!(fs::read_to_string(&out).unwrap(), "my diary\n");
    for own in [&[][..], &["--force"], &["--resume"]] {
        assert!(refusal(&prompts, &prompts, own).contains("prompts"));
        #[cfg(unix)]
        {
            let link = folder.path().join("link");
            if own.is_empty() {
                std::os::unix::fs::symlink(&prompts, &link).unwrap();
            }
            assert!(refusal(&prompts, &link, own).contains("link"));
        }
    }
    assert_eq!(fs::read_to_string(&prompts).unwrap(), "Once there was a fox.\n");
    fs::write(&out, "").unwrap();
    assert_eq!(batch(&prompts, &out, &[]).status.code(), Some(0));
}

#[test]
fn a_model_that_cannot_generate_is_refused_before_answers_begin() {
    let folder = tempfile::tempdir().unwrap();
    let (prompts, out) = (folder.path().join("prompts"), folder.path().join("answers"));
    fs::write(&prompts, "Once there was a fox.\n").unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("fixtures");
    for (model, word) in [("encoders/bert", "mlxcel embed"), ("architectures/llama", "tokenizer")] {
        let said = refusal(&prompts, &out, &["--model", fixtures.join(model).to_str().unwrap()]);
        assert!(said.contains(word), "{said}");
        assert_eq!(fs::read_to_string(&out).unwrap(), "", "{model}");
    }
}

#[test]
fn objects_are_recognised_after_spaces_and_byte_order_marks() {
    let folder = tempfile::tempdir().unwrap();
    let (prompts, out) = (folder.path().join("prompts"), folder.path().join("answers"));
    let object = "{\"prompt\": \"Once there was a fox.\"}";
    fs::write(&prompts, format!("\u{feff}{object}\n  {object}\n{object}\nOnce there was a fox.\n")).unwrap();
    assert_eq!(batch(&prompts, &out, &[]).status.code(), Some(0));
    let answers = fs::read_to_string(&out).unwrap();
    let tokens =
        |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["prompt_tokens"].clone();
    let tokens: Vec<_> = answers.lines().map(tokens).collect();
    assert!(tokens.len() == 4 && tokens.iter().all(|count| *count == tokens[3]), "{answers}");
}

#[test]
fn invalid_lines_are_reported_with_file_line_and_key() {
    let folder = tempfile::tempdir().unwrap();
    let (prompts, out) = (folder.path().join("prompts.jsonl"), folder.path().join("answers"));
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
        let said = refusal(&prompts, &out, &[]);
        assert!(said.contains("prompts.jsonl:3: ") && said.contains(word), "{said}");
    }
    #[cfg(target_os = "linux")]
    {
        fs::write(&prompts, "Once there was a fox.\n").unwrap();
        let output = batch(&prompts, Path::new("/dev/full"), &[]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && said.contains("write /dev/full"), "{said}");
    }
}
