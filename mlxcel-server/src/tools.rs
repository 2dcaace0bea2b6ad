//! Tools as OpenAI's API has them.

use mlxcel_session::mlxcel_core::one_line;
use mlxcel_session::{FinishReason, ToolChoice, ToolParser, ToolPart, Tools};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::failure::ApiError;
use crate::fields::finish_reason;
use crate::served::ServedModel;

/// What a request says of tools.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ToolFields {
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
}

impl ToolFields {
    /// The tools; none where there are none, or none is to be called.
    pub(crate) fn tools(self, app: &ServedModel) -> Result<Option<Tools>, ApiError> {
        let definitions = self.tools.unwrap_or_default();
        if definitions.len() > app.limits().tools {
            return Err(ApiError::invalid("tools", format!("at most {} tools", app.limits().tools)));
        }
        if let Some(other) = definitions.iter().find(|tool| tool["type"] != "function") {
            return Err(ApiError::unsupported("tools", &format!("a tool of type {}", other["type"])));
        }
        let choice = match &self.tool_choice {
            None | Some(Value::Null) => ToolChoice::Auto,
            Some(Value::String(choice)) => match choice.as_str() {
                "auto" => ToolChoice::Auto,
                "none" => ToolChoice::None,
                "required" => ToolChoice::Required,
                _ => {
                    return Err(ApiError::invalid(
                        "tool_choice",
                        "tool_choice must be auto, none, required or a tool",
                    ));
                }
            },
            Some(choice) => match choice["function"]["name"].as_str() {
                Some(name) => ToolChoice::Named(name.to_owned()),
                None => return Err(ApiError::invalid("tool_choice", "tool_choice names no function")),
            },
        };
        let wrong = |error: mlxcel_session::Error| ApiError::invalid("tools", one_line(&error));
        let tools = Tools::new(app.tokenizer()?, definitions).map_err(wrong)?;
        let tools = tools.with_parallel(self.parallel_tool_calls.unwrap_or(true));
        if tools.is_empty() && matches!(choice, ToolChoice::Auto | ToolChoice::None)
            || choice == ToolChoice::None
        {
            return Ok(None);
        }
        let wrong = |error: mlxcel_session::Error| ApiError::invalid("tool_choice", one_line(&error));
        Ok(Some(tools.with_choice(choice).map_err(wrong)?))
    }
}

/// Makes objects of the arguments of earlier calls, which clients send as texts and templates print as they
/// are.
pub(crate) fn read_arguments(extra: &mut Map<String, Value>) {
    let Some(calls) = extra.get_mut("tool_calls").and_then(Value::as_array_mut) else { return };
    for call in calls {
        let Some(arguments) = call.pointer_mut("/function/arguments") else { continue };
        let object =
            arguments.as_str().and_then(|text| serde_json::from_str::<Map<String, Value>>(text).ok());
        if let Some(object) = object {
            *arguments = Value::Object(object);
        }
    }
}

/// An answer's text and calls, in the API's format.
pub(crate) struct CalledTools {
    /// None where no tools were offered.
    parser: Option<ToolParser>,
    /// What the ids of the calls begin with.
    name: String,
    calls: usize,
}

impl CalledTools {
    /// Of the answer number `choice` to the request of a number.
    pub(crate) fn new(parser: Option<ToolParser>, request: u64, choice: usize) -> Self {
        Self { parser, name: format!("call_{request}_{choice}"), calls: 0 }
    }

    /// What `text` adds to the message.
    pub(crate) fn deltas(&mut self, text: &str) -> Vec<Value> {
        match &mut self.parser {
            None => vec![json!({ "content": text })],
            Some(parser) => {
                let parts = parser.push(text);
                self.of_parts(parts)
            }
        }
    }

    /// The withheld text until the end.
    pub(crate) fn last_deltas(&mut self) -> Vec<Value> {
        let parts = self.parser.as_mut().map(ToolParser::finish).unwrap_or_default();
        self.of_parts(parts)
    }

    fn of_parts(&mut self, parts: Vec<ToolPart>) -> Vec<Value> {
        let mut deltas = Vec::new();
        for part in parts {
            match part {
                ToolPart::Text(text) => deltas.push(json!({ "content": text })),
                ToolPart::Reasoning(text) => deltas.push(json!({ "reasoning_content": text })),
                ToolPart::Call(call) => {
                    let (index, id) = (self.calls, format!("{}_{}", self.name, self.calls));
                    self.calls += 1;
                    deltas.push(json!({ "tool_calls": [{
                        "index": index, "id": id, "type": "function", "function": { "name": call.name, "arguments": "" },
                    }]}));
                    deltas.push(json!({ "tool_calls": [{
                        "index": index, "function": { "arguments": call.arguments },
                    }]}));
                }
                _ => {}
            }
        }
        deltas
    }

    /// The whole message.
    pub(crate) fn message(&mut self, text: &str) -> Value {
        let mut message = json!({ "role": "assistant", "content": null, "refusal": null });
        let Some(parser) = &mut self.parser else {
            message["content"] = text.into();
            return message;
        };
        let mut parts = parser.push(text);
        parts.extend(parser.finish());
        let (mut content, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
        for part in parts {
            match part {
                ToolPart::Text(text) => content.push_str(&text),
                ToolPart::Reasoning(text) => reasoning.push_str(&text),
                ToolPart::Call(call) => {
                    let id = format!("{}_{}", self.name, calls.len());
                    calls.push(json!({
                        "id": id, "type": "function",
                        "function": { "name": call.name, "arguments": call.arguments },
                    }));
                }
                _ => {}
            }
        }
        if calls.is_empty() || !content.trim().is_empty() {
            message["content"] = content.into();
        }
        if !reasoning.is_empty() {
            message["reasoning_content"] = reasoning.into();
        }
        self.calls = calls.len();
        if !calls.is_empty() {
            message["tool_calls"] = Value::Array(calls);
        }
        message
    }

    /// OpenAI's word for why the answer ended.
    pub(crate) fn finish_reason(&self, reason: Option<FinishReason>) -> &'static str {
        match finish_reason(reason) {
            "stop" if self.calls > 0 => "tool_calls",
            reason => reason,
        }
    }
}
