//! Conversations as prompts: messages, and the chat template that a checkpoint brings.

mod jinja;
mod template;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

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
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, or what else the model's template knows.
    pub role: String,
    /// What is said.
    pub content: String,
    /// Further fields that the template reads, such as `tool_calls`.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Message {
    /// A message of `role`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into(), extra: Map::new() }
    }

    /// Instructions that stand above the conversation.
    pub fn system(content: impl Into<String>) -> Self {
        Self::new("system", content)
    }

    /// What the person says.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new("user", content)
    }

    /// What the model said.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new("assistant", content)
    }

    /// Adds a field that the template reads.
    #[must_use]
    pub fn with_field(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.extra.insert(name.into(), value.into());
        self
    }
}

/// How a conversation becomes a prompt.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ChatOptions {
    /// Whether the prompt ends where the model is to answer; true by default.
    pub add_generation_prompt: bool,
    /// Further variables of the template, such as `tools` or `enable_thinking`; they hide the given ones of the same name.
    pub variables: Map<String, Value>,
}

impl Default for ChatOptions {
    fn default() -> Self {
        Self { add_generation_prompt: true, variables: Map::new() }
    }
}

impl ChatOptions {
    /// Sets whether the prompt ends where the model is to answer.
    #[must_use]
    pub fn with_generation_prompt(mut self, add: bool) -> Self {
        self.add_generation_prompt = add;
        self
    }

    /// Sets a variable of the template.
    #[must_use]
    pub fn with_variable(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }
}
