//! How a conversation becomes a prompt.

use serde_json::{Map, Value};

/// How a conversation becomes a prompt.
///
/// ```
/// use mlxcel_session::ChatOptions;
/// use serde_json::json;
///
/// let tool = json!({"type": "function", "function": {"name": "now", "description": "The time", "parameters": {}}});
/// let options = ChatOptions::default().with_tools([tool]).with_thinking(false).with_date("2025-07-26");
/// assert_eq!(options.variables["enable_thinking"], false);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ChatOptions {
    /// Whether the prompt ends where the model is to answer; true by default.
    pub add_generation_prompt: bool,
    /// Whether the prompt ends inside of the last message, for the model to go on with it; then it has no generation prompt. False by
    /// default.
    pub continue_final_message: bool,
    /// Which of the checkpoint's named templates is used; `tool_use` where there are tools and such a template, else `default`, where
    /// none is named.
    pub template_name: Option<String>,
    /// The date, and the time if it is given, in the form of ISO 8601: `2025-07-26` or `2025-07-26T10:15`. The template's
    /// `strftime_now` says it in the place of the time of the call, and `date_string` is set to it in the form `26 Jul 2025`.
    pub date: Option<String>,
    /// Whether control tokens that are spelled out in what the template is given are control tokens, as in transformers. False by
    /// default: whatever a message says is text, and cannot end its turn or begin another one.
    pub special_tokens_in_text: bool,
    /// Further variables of the template, such as `tools` or `enable_thinking`; they hide the given ones of the same name.
    pub variables: Map<String, Value>,
}

impl Default for ChatOptions {
    fn default() -> Self {
        Self {
            add_generation_prompt: true,
            continue_final_message: false,
            template_name: None,
            date: None,
            special_tokens_in_text: false,
            variables: Map::new(),
        }
    }
}

impl ChatOptions {
    /// Sets whether the prompt ends where the model is to answer.
    #[must_use]
    pub fn with_generation_prompt(mut self, add: bool) -> Self {
        self.add_generation_prompt = add;
        self
    }

    /// Sets whether the prompt ends inside of the last message, for the model to go on with it.
    #[must_use]
    pub fn with_continue_final_message(mut self, go_on: bool) -> Self {
        self.continue_final_message = go_on;
        self
    }

    /// Sets which of the checkpoint's named templates is used.
    #[must_use]
    pub fn with_template_name(mut self, name: impl Into<String>) -> Self {
        self.template_name = Some(name.into());
        self
    }

    /// Sets the tools that the model may call, each described by a JSON schema: `{"type": "function", "function": {…}}`.
    #[must_use]
    pub fn with_tools(self, tools: impl IntoIterator<Item = Value>) -> Self {
        self.with_variable("tools", Value::Array(tools.into_iter().collect()))
    }

    /// Sets the documents that the answer is to rest on, each an object of `title` and `text`.
    #[must_use]
    pub fn with_documents(self, documents: impl IntoIterator<Item = Value>) -> Self {
        self.with_variable("documents", Value::Array(documents.into_iter().collect()))
    }

    /// Sets whether the model thinks before it answers, where its template lets that be chosen: `enable_thinking` (Qwen 3, SmolLM3)
    /// and `thinking` (Granite, DeepSeek V3.1).
    #[must_use]
    pub fn with_thinking(self, think: bool) -> Self {
        self.with_variable("enable_thinking", think).with_variable("thinking", think)
    }

    /// Sets [`date`](Self::date), so that the same messages give the same prompt on any day.
    #[must_use]
    pub fn with_date(mut self, date: impl Into<String>) -> Self {
        self.date = Some(date.into());
        self
    }

    /// Sets [`special_tokens_in_text`](Self::special_tokens_in_text); only for messages of which you trust every word.
    #[must_use]
    pub fn with_special_tokens_in_text(mut self, allow: bool) -> Self {
        self.special_tokens_in_text = allow;
        self
    }

    /// Sets a variable of the template.
    #[must_use]
    pub fn with_variable(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }
}
