//! Messages, the chat template that renders them as a prompt, and the formats of reasoning and calls.

mod call;
pub(crate) mod marks;
mod options;
mod part;
mod prepared;
mod reasoning;
mod special_tokens;
pub(crate) mod style;
pub(crate) mod styles;
mod template;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

pub use call::ToolCall;
pub use options::ChatOptions;
pub use part::AnswerPart;
pub use reasoning::ReasoningFormat;
pub(crate) use reasoning::ReasoningMarks;
pub(crate) use special_tokens::SpecialTokens;
pub use template::ChatTemplate;

/// One message of a conversation.
///
/// ```
/// use mlxcel_session::Message;
///
/// let message = Message::user("Tell me a story about a fox named Pip.");
/// assert_eq!((message.role.as_str(), message.extra.len()), ("user", 0));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Message {
    /// The role: `system`, `user`, `assistant`, or another one that the model's template supports.
    pub role: String,
    /// The text.
    pub content: String,
    /// Other fields that the template reads, such as `tool_calls`.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Message {
    /// A message with the role `role`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into(), extra: Map::new() }
    }

    /// A system message: instructions for the whole conversation.
    pub fn system(content: impl Into<String>) -> Self {
        Self::new("system", content)
    }

    /// A message of the user.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new("user", content)
    }

    /// A message of the model.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new("assistant", content)
    }

    /// A message of the model that calls tools. Set [`content`](Self::content) to the text before the calls,
    /// if any; [`Tools::read`](crate::Tools::read) makes the whole message of an answer.
    pub fn calls<'c>(calls: impl IntoIterator<Item = &'c ToolCall>) -> Self {
        let calls = calls.into_iter().map(ToolCall::to_json).collect::<Value>();
        Self::assistant("").with_field("tool_calls", calls)
    }

    /// The result of a tool call, for the model to read. It belongs behind the message with the call
    /// ([`calls`](Self::calls)), in the order of the calls.
    ///
    /// ```
    /// use mlxcel_session::{Message, ToolCall};
    ///
    /// let call = ToolCall::new("call00001", "get_weather", r#"{"city": "Oslo"}"#);
    /// let messages = [Message::user("Is it raining in Oslo?"), Message::calls([&call]), Message::tool_result(&call, "rain")];
    /// assert_eq!(messages[2].extra["tool_call_id"], "call00001");
    /// ```
    pub fn tool_result(call: &ToolCall, content: impl Into<String>) -> Self {
        Self::new("tool", content)
            .with_field("tool_call_id", call.id.as_str())
            .with_field("name", call.name.as_str())
    }

    /// A message of the model from its parts: reasoning becomes the field `reasoning_content`, and tool calls
    /// `tool_calls`.
    pub fn of_parts(parts: impl IntoIterator<Item = AnswerPart>) -> Self {
        let (mut reasoning, mut answer) = (String::new(), String::new());
        let mut calls: Vec<(String, String)> = Vec::new();
        for part in parts {
            match part {
                AnswerPart::Reasoning(text) => reasoning.push_str(&text),
                AnswerPart::Answer(text) => answer.push_str(&text),
                AnswerPart::Call { to, text } => {
                    match calls.last_mut().filter(|(last, _)| *last == to && !text.is_empty()) {
                        Some((_, arguments)) => arguments.push_str(&text),
                        None => calls.push((to, text)),
                    }
                }
            }
        }
        let mut message = Self::assistant(answer.trim_start_matches('\n')).with_reasoning(&reasoning);
        if !calls.is_empty() {
            let call = |(to, text): (String, String)| {
                let arguments = serde_json::from_str(&text).unwrap_or(Value::String(text));
                let name = to.strip_prefix("functions.").unwrap_or(&to);
                json!({"type": "function", "function": {"name": name, "arguments": arguments}})
            };
            message = message.with_field("tool_calls", calls.into_iter().map(call).collect::<Value>());
        }
        message
    }

    /// Adds the reasoning before it, if there is any.
    pub(crate) fn with_reasoning(self, reasoning: &str) -> Self {
        match reasoning.trim_matches('\n') {
            "" => self,
            reasoning => self.with_field("reasoning_content", reasoning),
        }
    }

    /// Adds a field that the template reads.
    #[must_use]
    pub fn with_field(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.extra.insert(name.into(), value.into());
        self
    }
}
