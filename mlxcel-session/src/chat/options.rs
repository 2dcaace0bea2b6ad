//! Options of rendering a conversation as a prompt.

use serde_json::{Map, Value};

/// Options of rendering a conversation as a prompt.
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
    /// Whether to append the prompt for the model's answer; defaults to true.
    pub add_generation_prompt: bool,
    /// Whether the prompt ends inside the last message, so that the model continues it; no generation prompt
    /// is added then. Defaults to false.
    pub continue_final_message: bool,
    /// Which of the checkpoint's named templates is used. Defaults to `tool_use` if tools are passed and the
    /// template exists, else to `default`.
    pub template_name: Option<String>,
    /// The date, optionally with a time, in ISO 8601: `2025-07-26` or `2025-07-26T10:15`. The template's
    /// `strftime_now` returns it instead of the current time, and the variable `date_string` is set to
    /// it in the form `26 Jul 2025`.
    pub date: Option<String>,
    /// Whether control tokens spelled out in messages, tools and documents are parsed as control tokens, as
    /// transformers does. Defaults to false: a message is text only, and cannot end its turn or begin
    /// another one.
    pub special_tokens_in_text: bool,
    /// Additional variables of the template, such as `tools` or `enable_thinking`; they override built-in
    /// ones of the same name.
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
    mlxcel_core::setters! {
        /// Sets whether to append the prompt for the model's answer.
        with_generation_prompt(add: bool) => add_generation_prompt = add;
        /// Sets whether the prompt ends inside the last message, so that the model continues it.
        with_continue_final_message(go_on: bool) => continue_final_message = go_on;
        /// Sets which of the checkpoint's named templates is used.
        with_template_name(name: impl Into<String>) => template_name = Some(name.into());
        /// Sets [`date`](Self::date), so that the same messages give the same prompt on any day.
        with_date(date: impl Into<String>) => date = Some(date.into());
        /// Sets [`special_tokens_in_text`](Self::special_tokens_in_text). Use it for trusted messages only.
        with_special_tokens_in_text(allow: bool) => special_tokens_in_text = allow;
    }

    /// Sets the tools that the model may call, each described by a JSON schema: `{"type": "function",
    /// "function": {…}}`.
    #[must_use]
    pub fn with_tools(self, tools: impl IntoIterator<Item = Value>) -> Self {
        self.with_variable("tools", Value::Array(tools.into_iter().collect()))
    }

    /// Sets the documents for retrieval-augmented generation, each an object with `title` and `text`.
    #[must_use]
    pub fn with_documents(self, documents: impl IntoIterator<Item = Value>) -> Self {
        self.with_variable("documents", Value::Array(documents.into_iter().collect()))
    }

    /// Sets whether the model reasons before it answers, if its template has a switch: `enable_thinking`
    /// (Qwen 3, SmolLM3) or `thinking` (Granite, DeepSeek V3.1).
    #[must_use]
    pub fn with_thinking(self, think: bool) -> Self {
        self.with_variable("enable_thinking", think).with_variable("thinking", think)
    }

    /// Sets a template variable.
    #[must_use]
    pub fn with_variable(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }
}
