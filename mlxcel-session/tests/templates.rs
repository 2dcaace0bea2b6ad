//! Chat templates against Jinja itself: `fixtures/chat_templates.py` says what Jinja, set up as transformers does, makes of them.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use mlxcel_session::{ChatOptions, ChatTemplate, Message};
use serde_json::{Map, Value};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn expectations() -> Value {
    serde_json::from_slice(&fs::read(fixtures().join("chat_templates.json")).unwrap()).unwrap()
}

/// What a template makes of messages and variables; none for an error.
fn render(source: &str, messages: &[Message], variables: &Map<String, Value>) -> Result<String, String> {
    let mut options = ChatOptions::default();
    options.variables.clone_from(variables);
    let template = ChatTemplate::new(source).map_err(chain)?;
    template.render(messages, &options).map_err(chain)
}

fn chain(error: mlxcel_session::Error) -> String {
    format!("{error}: {}", std::error::Error::source(&error).unwrap())
}

#[test]
fn the_language_is_that_of_jinja() {
    let expectations = expectations();
    let variables = expectations["data"].as_object().unwrap();
    let mut wrong = Vec::new();
    for case in expectations["language"].as_array().unwrap() {
        let source = case[0].as_str().unwrap();
        let got = render(source, &[], variables);
        if got.as_ref().ok().map(String::as_str) != case[1].as_str() {
            wrong.push(format!("{source}\n  expected {}\n  got      {got:?}", case[1]));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn templates_of_published_structure_render_as_jinja_renders_them() {
    let expectations = expectations();
    let mut rendered = 0;
    for case in expectations["styles"].as_array().unwrap() {
        let style = case["style"].as_str().unwrap();
        let source = fs::read_to_string(fixtures().join(format!("chat_templates/{style}.jinja"))).unwrap();
        let messages: Vec<Message> = serde_json::from_value(case["messages"].clone()).unwrap();
        let mut variables = case.as_object().unwrap().clone();
        for name in ["style", "messages", "expected"] {
            variables.remove(name);
        }
        variables.insert("bos_token".to_owned(), "<s>".into());
        variables.insert("eos_token".to_owned(), "</s>".into());
        let got = render(&source, &messages, &variables);
        assert_eq!(
            got.as_ref().ok().map(String::as_str),
            case["expected"].as_str(),
            "{style}: {case}\n{got:?}"
        );
        rendered += usize::from(got.is_ok());
    }
    assert!(rendered >= 70, "{rendered}");
}
