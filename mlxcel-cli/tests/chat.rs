//! The program `chat`, as a user runs it through a pipe.
#![cfg(feature = "portable")]

use std::fs;
use std::path::Path;

use crate::adapter::write_adapter;
use crate::program::{Run, copy_of_storyteller, mlxcel};

/// What `chat` makes of `input`: status, answers and notes.
fn chat(arguments: &[&str], input: &[u8]) -> (i32, String, String) {
    let mut command = mlxcel(&["chat", "--backend", "portable"]);
    let Run { status, out, err } = Run::with_input(command.args(arguments), input);
    (status, out, err)
}

/// Holds notes against the beginnings of lines that they have, the last of which ends them.
fn assert_lines(notes: &str, expected: &[&str]) {
    for words in expected {
        assert!(notes.lines().any(|note| note.starts_with(words)), "{words}: {notes}");
    }
    assert_eq!(notes.lines().last(), expected.last().copied());
}

#[test]
fn chat_answers_each_line_until_it_is_told_to_quit() {
    let lines =
        "Tell me a story about a duck named Nell.\n\nWhat did Nell find?\n/quit\nNobody hears this.\n";
    let (status, answers, notes) = chat(&[], lines.as_bytes());
    assert_eq!((status, notes.as_str()), (0, ""));
    let answers: Vec<&str> = answers.lines().collect();
    assert_eq!(answers.len(), 2, "{answers:?}");
    assert!(answers.iter().all(|answer| answer.contains("Nell")), "{answers:?}");
}

#[test]
fn a_full_context_is_reported_and_the_chat_continues() {
    // Each of the long lines takes more than half of the context of 1024 tokens.
    let long = "Tell me a story about a duck named Nell. ".repeat(48);
    let lines = format!("{long}\n{long}\n/forget\n{long}\n");
    let (status, answers, notes) = chat(&[], lines.as_bytes());
    assert_eq!(status, 1, "{notes}");
    assert_eq!(answers.lines().count(), 2, "{answers}");
    let expected = [
        "note: the conversation does not fit into the context of 1024 tokens",
        "note: /forget forgets the oldest turn, /undo the last one, /reset all of them",
        "error: 1 of the lines got no answer",
    ];
    assert_lines(&notes, &expected);
}

#[test]
fn drop_oldest_removes_turns_and_a_line_beyond_the_context_is_an_error() {
    let long = "Tell me a story about a duck named Nell. ".repeat(48);
    let lines = format!("{long}\n{long}\n{}\nTell me a story about a duck named Nell.\n", long.repeat(40));
    let (status, answers, notes) = chat(&["--forget"], lines.as_bytes());
    assert_eq!(status, 1, "{notes}");
    assert_eq!(answers.lines().count(), 3, "{answers}");
    let expected = [
        "note: the context is full: 1 turns were dropped",
        "note: this line does not fit into the context of 1024 tokens even alone",
        "error: 1 of the lines got no answer",
    ];
    assert_lines(&notes, &expected);
}

#[test]
fn commands_undo_branch_and_show_turns() {
    let question = "Tell me a story about a duck named Nell.";
    let lines = format!(
        "/retry\n{question}\n/retry\n/fork\n/undo\n/history\n/branch 1\n/history\n/branch 7\n/nonsense\n/system Be brief.\n\
         /reset\n/history\n/help\n"
    );
    let (status, answers, notes) = chat(&[], lines.as_bytes());
    assert_eq!(status, 0, "{notes}");
    let answers: Vec<&str> = answers.lines().collect();
    // The same answer twice, nothing in the branch, both messages in the trunk, the instructions alone, and
    // help.
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[2], "");
    assert_eq!(
        answers[3..6],
        [format!("user: {question}"), format!("assistant: {}", answers[0]), "system: Be brief.".to_owned()]
    );
    assert!(answers[6].starts_with("/help"), "{answers:?}");
    let expected = [
        "note: the conversation is empty",
        "note: the choice is greedy, so that the answer is the same; start with --temperature above 0",
        "note: this is branch 2; /branch 1 goes back",
        &format!("note: taken back: {question}"),
        "note: this is branch 1",
        "note: there are branches from 1 to 2",
        "note: unknown command '/nonsense'; /help lists the commands",
        "note: the instructions are set",
        "note: everything is forgotten",
    ];
    assert_eq!(notes.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn an_adapter_answers_and_its_conversations_are_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (zero, strong, kept) = (path("zero"), path("strong"), path("kept"));
    let queries = [("model.layers.0.self_attn.q_proj", 192, 192)];
    write_adapter(Path::new(&zero), &queries, 1, 0.0, 1);
    write_adapter(Path::new(&strong), &queries, 1, 2.0, 1);
    let question = "Tell me a story about a duck named Nell.\n";
    let lines = format!("{question}/keep {kept}\n/fork\nWhat did Nell find?\n");
    let answers = |adapter: &[&str]| {
        let (status, answers, notes) = chat(adapter, lines.as_bytes());
        assert_eq!(status, 0, "{notes}");
        answers
    };
    let plain = answers(&[]);
    assert_eq!(answers(&["--adapter", &zero]), plain);
    let own = answers(&["--adapter", &strong]);
    assert_ne!(own, plain);
    let load = format!("/load {kept}\nWhat did Nell find?\n");
    let (_, answer, notes) = chat(&["--adapter", &strong], load.as_bytes());
    assert_eq!((notes.as_str(), answer.lines().next()), ("note: loaded\n", own.lines().nth(1)));
    // What another adapter has computed is not continued: its messages are.
    for other in [&[][..], &["--adapter", &zero]] {
        let (_, history, notes) = chat(other, format!("/load {kept}\n/history\n").as_bytes());
        assert!(notes.contains("note: loaded without the KV cache"), "{notes}");
        assert!(history.starts_with("user: Tell me a story"), "{history}");
    }
}

#[test]
fn a_saved_conversation_resumes() {
    let folder = tempfile::tempdir().unwrap();
    let (saved, kept) = (folder.path().join("saved.json"), folder.path().join("kept"));
    let (saved, kept) = (saved.to_str().unwrap(), kept.to_str().unwrap());
    let question = "Tell me a story about a duck named Nell.";
    let lines = format!("{question}\n/save {saved}\n/keep {kept}\nWhat did Nell find?\n");
    let (status, answers, notes) = chat(&[], lines.as_bytes());
    assert_eq!((status, notes.as_str()), (0, "note: saved\nnote: saved with its KV cache\n"));
    let second = answers.lines().nth(1).unwrap();
    for file in [saved, kept] {
        let (status, answers, notes) = chat(&[], format!("/load {file}\nWhat did Nell find?\n").as_bytes());
        assert_eq!((status, notes.as_str()), (0, "note: loaded\n"));
        assert_eq!(answers.trim_end(), second);
    }
    let (status, _, notes) =
        chat(&[], format!("/load {}\n/save {}/no/folder\n", "Cargo.toml", saved).as_bytes());
    assert_eq!(status, 0);
    assert_eq!(notes.lines().filter(|note| note.starts_with("note: ")).count(), 2, "{notes}");
}

#[test]
fn an_answer_that_ends_by_the_limit_is_noted() {
    let (status, _, notes) = chat(&["-n", "4"], b"Tell me a story about a duck named Nell.\n");
    assert_eq!((status, notes.lines().count()), (0, 1), "{notes}");
    assert!(notes.contains("4 tokens") && notes.contains("--max-tokens"), "{notes}");
}

#[test]
fn commands_without_their_argument_say_what_they_need() {
    let (status, _, notes) = chat(&[], b"/save\n/keep\n/load\n/system\n/branch\n");
    assert_eq!(status, 0);
    let notes: Vec<&str> = notes.lines().collect();
    for (note, name) in notes.iter().zip(["/save", "/keep", "/load", "/system", "/branch"]) {
        assert!(note.starts_with(&format!("note: {name} needs")), "{note}");
    }
    assert_eq!(notes.len(), 5);
}

#[test]
fn answers_are_sampled_as_the_checkpoint_recommends() {
    let folder = copy_of_storyteller();
    let config = r#"{"do_sample": true, "temperature": 1.5, "eos_token_id": 1}"#;
    fs::write(folder.path().join("generation_config.json"), config).unwrap();
    let model = ["--model", folder.path().to_str().unwrap()];
    let line = b"Tell me a story about a duck named Nell.\n/retry\n";
    let answers = |arguments: &[&str]| {
        let (status, answers, notes) = chat(&[&model[..], arguments].concat(), line);
        assert_eq!(status, 0, "{notes}");
        let answers: Vec<String> = answers.lines().map(str::to_owned).collect();
        (answers[0] == answers[1], notes.contains("greedy"))
    };
    assert_eq!(answers(&[]), (false, false));
    assert_eq!(answers(&["--temperature", "0"]), (true, true));
    // The same line again.
    let again =
        b"Tell me a story about a duck named Nell.\n/reset\nTell me a story about a duck named Nell.\n";
    let answers = |arguments: &[&str]| {
        let (_, answers, _) = chat(&[&model[..], arguments].concat(), again);
        answers.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let (drawn, given) = (answers(&["--temperature", "100"]), answers(&["--seed", "7"]));
    assert_ne!(drawn[0], drawn[1]);
    assert_eq!(given[0], given[1]);
}

#[test]
fn input_that_is_not_text_is_reported() {
    let (status, answers, notes) = chat(&[], b"Hello \xff\n");
    assert_eq!((status, answers.as_str()), (2, ""));
    assert!(notes.starts_with("error: read the prompt from standard input: it is not UTF-8"), "{notes}");
}

#[cfg(unix)]
#[test]
fn an_interrupt_stops_the_answer_and_the_conversation_goes_on() {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::process::Command;

    if crate::ignores_interrupts() {
        return;
    }
    // Without the token that ends answers it goes on for seconds, however late the interrupt is sent.
    let arguments = ["chat", "--backend", "portable", "--forbidden-tokens", "1"];
    let mut child = crate::program::start(&mut mlxcel(&arguments));
    let mut stdin = child.stdin.take().unwrap();
    let mut answers = BufReader::new(child.stdout.take().unwrap());
    stdin.write_all(b"Tell me a story about a duck named Nell.\n").unwrap();
    // The answer has begun.
    answers.read_exact(&mut [0]).unwrap();
    let interrupted = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(interrupted.success());
    let mut line = String::new();
    answers.read_line(&mut line).unwrap();
    stdin.write_all(b"/history\n/quit\n").unwrap();
    let mut history = String::new();
    answers.read_to_string(&mut history).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "note: the answer was stopped\n");
    // It stays in the conversation as far as it went.
    assert!(history.contains("user: Tell me a story") && history.contains("assistant: "), "{history}");
}
