//! A chat template, which is a program, with conversations of several shapes.

use std::fs;

use mlxcel_session::{ChatOptions, ChatTemplate, Message};
use serde_json::json;

use crate::corpus::repository;
use crate::outcome::Outcome;
use crate::target::{Format, Target};

pub(super) const TARGET: Target = Target {
    name: "template",
    about: "a chat template: parsed, and conversations rendered with it, on the smallest stack that systems give",
    format: Format::Template,
    run,
    memory: 192,
    stack: 512,
    longest: 256 << 10,
    seeds: templates,
    ..Target::USUAL
};

fn run(input: &[u8]) -> Outcome {
    let Ok(source) = std::str::from_utf8(input) else { return Outcome::new("no text") };
    let template = match ChatTemplate::new(source) {
        Ok(template) => template,
        Err(error) => return Outcome::refused(&error),
    };
    let call = json!([{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"b": 1, "a": [2.5, null]}}}]);
    let tool = json!([{"type": "function", "function": {"name": "f", "description": "d\n", "parameters":
        {"type": "object", "properties": {"a": {"type": "string", "enum": ["x"]}}, "required": ["a"]}}}]);
    let plain = vec![Message::user("Hello é😀 <|im_end|>")];
    let turns = vec![
        Message::system("Be brief."),
        Message::user("2 + 2?"),
        Message::assistant("<think>\n\nadd</think>4").with_field("tool_calls", call),
        Message::new("tool", "4\n").with_field("name", "f").with_field("tool_call_id", "1"),
        Message::user(""),
    ];
    let with_tools = ChatOptions::default()
        .with_variable("tools", tool)
        .with_variable("x", "text")
        .with_variable("enable_thinking", true)
        .with_generation_prompt(false);
    let rendered =
        [(plain, ChatOptions::default().with_variable("x", json!({"a": [1]}))), (turns, with_tools)];
    let words = |text: String| Outcome::new(format!("{} bytes", text.len().min(64).next_power_of_two()));
    let outcomes =
        rendered.iter().map(|(messages, options)| Outcome::of(template.render(messages, options).map(words)));
    outcomes.reduce(Outcome::then).unwrap_or_default()
}

/// Published templates.
pub(super) fn templates() -> Vec<Vec<u8>> {
    let folder = repository().join("mlxcel-session/tests/fixtures/chat_templates");
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().flat_map(fs::read).collect()
}
