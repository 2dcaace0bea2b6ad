//! Chat templates against transformers and Jinja: `fixtures/chat_templates.py` says what those make of them.

use mlxcel_session::{ChatOptions, ChatTemplate, Message};
use serde_json::Value;

use crate::support::{chat_expectations, published_template};

/// What a template makes of messages and variables; none for an error.
fn render(source: &str, messages: &[Message], options: &ChatOptions) -> Result<String, String> {
    let template = ChatTemplate::new(source).map_err(chain)?;
    template.render(messages, options).map_err(chain)
}

fn chain(error: mlxcel_session::Error) -> String {
    format!("{error}: {:?}", std::error::Error::source(&error).map(ToString::to_string))
}

#[test]
fn templates_follow_jinja() {
    let expectations = chat_expectations();
    let mut options = ChatOptions::default();
    options.variables.clone_from(expectations["data"].as_object().unwrap());
    let mut wrong = Vec::new();
    for case in expectations["language"].as_array().unwrap() {
        let source = case[0].as_str().unwrap();
        let got = render(source, &[], &options);
        if got.as_ref().ok().map(String::as_str) != case[1].as_str() {
            wrong.push(format!("{source}\n  expected {}\n  got      {got:?}", case[1]));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// How a conversation of the expectations is rendered, by the builders for all that has one.
fn options(conversation: &Value) -> ChatOptions {
    let mut options = ChatOptions::default()
        .with_date("2025-07-26T10:15")
        .with_variable("bos_token", "<s>")
        .with_variable("eos_token", "</s>");
    let list = |value: &Value| value.as_array().unwrap().clone();
    for (name, value) in conversation.as_object().unwrap() {
        options = match name.as_str() {
            "messages" => options,
            "tools" => options.with_tools(list(value)),
            "documents" => options.with_documents(list(value)),
            "add_generation_prompt" => options.with_generation_prompt(value.as_bool().unwrap()),
            "continue_final_message" => options.with_continue_final_message(value.as_bool().unwrap()),
            _ => options.with_variable(name, value.clone()),
        };
    }
    options
}

#[test]
fn published_templates_render_as_in_transformers() {
    let expectations = chat_expectations();
    let (mut rendered, mut refused) = (0, 0);
    for case in expectations["styles"].as_array().unwrap() {
        let style = case["style"].as_str().unwrap();
        let source = published_template(style);
        let conversation =
            &expectations["conversations"][usize::try_from(case["conversation"].as_u64().unwrap()).unwrap()];
        let messages: Vec<Message> = serde_json::from_value(conversation["messages"].clone()).unwrap();
        let got = render(&source, &messages, &options(conversation));
        let expected = case["expected"].as_str();
        assert_eq!(got.as_ref().ok().map(String::as_str), expected, "{style}: {conversation}\n{got:?}");
        *if got.is_ok() { &mut rendered } else { &mut refused } += 1;
    }
    assert!(rendered >= 190 && refused >= 5, "{rendered} {refused}");
}

#[test]
fn thinking_is_enabled_by_the_templates_variable() {
    let options = ChatOptions::default().with_thinking(false);
    let source = "{{ enable_thinking is false }} {{ thinking is false }}";
    assert_eq!(render(source, &[], &options).unwrap(), "True True");
}

#[test]
fn strftime_now_uses_the_given_date() {
    let source = "{{ strftime_now('%d %B %Y %H:%M') }}; {{ date_string }}";
    let options = ChatOptions::default().with_date("2024-02-29");
    assert_eq!(render(source, &[], &options).unwrap(), "29 February 2024 00:00; 29 Feb 2024");
    assert!(render(source, &[], &options.with_date("yesterday")).unwrap_err().contains("date"));
}

#[test]
fn a_message_that_the_template_omits_cannot_be_continued() {
    let options = ChatOptions::default().with_continue_final_message(true);
    for source in ["{{ messages|length }}", "{{ messages[-1].content[:4] }}", ""] {
        let fault = render(source, &[Message::assistant("Once upon")], &options).unwrap_err();
        assert!(fault.contains("cannot be continued"), "{fault}");
    }
    assert!(render("{{ messages }}", &[], &options).is_err());
    let last = Message::assistant("Once ");
    assert_eq!(
        render("<{{ messages[0].content }}>", std::slice::from_ref(&last), &options).unwrap(),
        "<Once "
    );
    assert_eq!(render("<{{ messages[0].content|trim }}>", &[last], &options).unwrap(), "<Once");
}
