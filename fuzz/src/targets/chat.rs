//! Conversations, tools and variables that an application hands on, with published templates.

use std::cell::RefCell;

use mlxcel_session::{ChatOptions, ChatTemplate, Message};
use serde_json::{Map, Value, json};

use super::template::templates;
use crate::outcome::Outcome;
use crate::target::Target;

pub(super) const TARGET: Target = Target {
    name: "chat",
    about: "messages, tools and variables as JSON: rendered with each published template",
    run,
    stack: 512,
    seeds,
    ..Target::USUAL
};

thread_local! {
    static TEMPLATES: RefCell<Vec<ChatTemplate>> = const { RefCell::new(Vec::new()) };
}

fn run(input: &[u8]) -> Outcome {
    TEMPLATES.with_borrow_mut(|parsed| {
        if parsed.is_empty() {
            let sources = templates().into_iter().filter_map(|source| String::from_utf8(source).ok());
            parsed.extend(sources.filter_map(|source| ChatTemplate::new(&source).ok()));
        }
        let Ok(mut conversation) = serde_json::from_slice::<Map<String, Value>>(input) else {
            return Outcome::new("no conversation");
        };
        let messages = conversation.remove("messages").unwrap_or_default();
        let Ok(messages) = serde_json::from_value::<Vec<Message>>(messages) else {
            return Outcome::new("no messages");
        };
        let mut options = ChatOptions::default();
        options.variables = conversation;
        let outcomes = parsed.iter().map(|template| {
            Outcome::of(template.render(&messages, &options).map(|_| Outcome::new("rendered")))
        });
        outcomes.reduce(Outcome::then).unwrap_or_default()
    })
}

fn seeds() -> Vec<Vec<u8>> {
    let call = json!({"id": "1", "type": "function", "function": {"name": "add", "arguments": {"b": 1, "a": [2.5, null]}}});
    let conversation = json!({
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "developer", "content": "And kind."},
            {"role": "user", "content": "What is 2 + 2?"},
            {"role": "assistant", "content": "", "thinking": "so", "reasoning_content": "hm", "tool_calls": [call]},
            {"role": "tool", "content": "4", "name": "add", "tool_call_id": "1"},
            {"role": "assistant", "content": "4"},
            {"role": "user", "content": "Thanks"},
        ],
        "tools": [{"type": "function", "function": {"name": "add", "description": "adds", "parameters": {"type": "object",
            "properties": {"a": {"type": ["number", "null"], "description": "one", "enum": [1], "default": 2, "items": {}},
                "b": {"oneOf": [{"type": "string"}], "anyOf": [], "nullable": true}}, "required": ["a"]}}}],
        "documents": [{"title": "t", "text": "x"}],
        "enable_thinking": true, "builtin_tools": ["browser"], "reasoning_effort": "high", "date_string": "26 Jul 2024",
        "custom_tools": null, "add_generation_prompt": false, "xml_tools": [], "model_identity": "You are",
    });
    vec![
        conversation.to_string().into_bytes(),
        br#"{"messages": [{"role": "user", "content": "Hi"}]}"#.to_vec(),
    ]
}
