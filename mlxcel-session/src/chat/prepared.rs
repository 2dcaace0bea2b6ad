//! Messages as chat templates read them.

use std::borrow::Cow;
use std::collections::VecDeque;

use serde_json::Value;

use super::{ChatTemplate, Message};

/// The names of a message's reasoning; transformers gives it to templates by the first two.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// What the templates of Llama 3 raise for a message with several calls.
const SINGLE_CALLS: &str = "only supports single tool-calls";

/// The messages as `template` reads them: with reasoning under the names that templates look for, with
/// arguments of calls as text if it prints them so, and with one call each if it raises an exception for
/// several.
pub(super) fn prepared<'m>(template: &ChatTemplate, messages: &'m [Message]) -> Cow<'m, [Message]> {
    let mut messages = with_reasoning(messages);
    let most = messages.iter().map(|message| calls(message).len()).max().unwrap_or_default();
    if most > 0 && template.style().text_arguments {
        messages.to_mut().iter_mut().for_each(write_arguments);
    }
    if most > 1 && template.spells(SINGLE_CALLS) {
        return Cow::Owned(with_single_calls(&messages));
    }
    messages
}

fn calls(message: &Message) -> &[Value] {
    message.extra.get("tool_calls").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn write_arguments(message: &mut Message) {
    let calls = message.extra.get_mut("tool_calls").and_then(Value::as_array_mut);
    for call in calls.into_iter().flatten() {
        if let Some(arguments) = call.pointer_mut("/function/arguments").filter(|value| value.is_object()) {
            *arguments = arguments.to_string().into();
        }
    }
}

/// The messages, where one with several calls is several, each before the result of its call.
fn with_single_calls(messages: &[Message]) -> Vec<Message> {
    let mut single = Vec::with_capacity(messages.len());
    let mut rest = messages;
    while let Some((message, behind)) = rest.split_first() {
        rest = behind;
        let calls = calls(message);
        if calls.len() < 2 {
            single.push(message.clone());
            continue;
        }
        let count = rest.iter().take_while(|message| message.role == "tool").count();
        let (results, behind) = rest.split_at(count);
        rest = behind;
        let mut results: VecDeque<&Message> = results.iter().collect();
        // What else the message has is before the first call.
        let mut part = message.clone().with_field("tool_calls", Value::Null);
        for call in calls {
            single.push(part.with_field("tool_calls", vec![call.clone()]));
            part = Message::new(&*message.role, "");
            let is_of_call = |result: &&Message| {
                result.extra.get("tool_call_id").is_none_or(|id| Some(id) == call.get("id"))
            };
            let result = results.iter().position(is_of_call).and_then(|index| results.remove(index));
            single.extend(result.cloned());
        }
        single.extend(results.into_iter().cloned());
    }
    single
}

/// The messages, where reasoning has the names that templates look for.
fn with_reasoning(messages: &[Message]) -> Cow<'_, [Message]> {
    let given = |message: &Message| {
        REASONING.iter().find_map(|name| message.extra.get(*name).filter(|value| !value.is_null())).cloned()
    };
    if messages.iter().all(|message| given(message).is_none()) {
        return Cow::Borrowed(messages);
    }
    let named = messages.iter().map(|message| {
        let mut message = message.clone();
        if let Some(reasoning) = given(&message) {
            message.extra.entry("thinking").or_insert_with(|| reasoning.clone());
            message.extra.insert("reasoning_content".to_owned(), reasoning);
        }
        message
    });
    Cow::Owned(named.collect())
}
