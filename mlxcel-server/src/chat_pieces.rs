//! The message and chunks of a chat's answer.

use mlxcel_session::ToolPart;
use serde_json::{Value, json};

use crate::answer::Answer;
use crate::failure::ApiError;
use crate::header::Header;
use crate::logprobs;
use crate::served::ServedModel;
use crate::sse::Pieces;

/// An answer in chunks.
pub(crate) struct ChatPieces {
    header: Header,
    index: usize,
    with_logprobs: bool,
    /// How many tokens were told with their log probabilities.
    told: usize,
    /// How many calls were told.
    calls: usize,
}

impl ChatPieces {
    /// Of answer number `index`.
    pub(crate) fn new(header: Header, index: usize, with_logprobs: bool) -> Self {
        Self { header, index, with_logprobs, told: 0, calls: 0 }
    }

    fn chunk(&self, delta: &Value, logprobs: Option<Value>, finish: Option<&str>) -> Value {
        let choice = json!({
            "index": self.index, "delta": delta, "logprobs": logprobs, "finish_reason": finish,
        });
        self.header.message(&[choice], None)
    }

    /// What `parts` add to the message.
    fn deltas(&mut self, parts: Vec<ToolPart>) -> Vec<Value> {
        let mut deltas = Vec::new();
        for part in parts {
            match part {
                ToolPart::Text(text) => deltas.push(json!({ "content": text })),
                ToolPart::Reasoning(text) => deltas.push(json!({ "reasoning_content": text })),
                ToolPart::Call(call) => {
                    let index = self.calls;
                    self.calls += 1;
                    let function = json!({ "name": call.name, "arguments": "" });
                    deltas.push(json!({ "tool_calls": [{
                        "index": index, "id": call.id, "type": "function", "function": function,
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
}

impl Pieces for ChatPieces {
    fn begin(&mut self, _: &ServedModel, _: &Answer) -> Vec<Value> {
        vec![self.chunk(&json!({ "role": "assistant", "content": "" }), None, None)]
    }

    fn parts(
        &mut self,
        app: &ServedModel,
        answer: &Answer,
        parts: Vec<ToolPart>,
    ) -> Result<Vec<Value>, ApiError> {
        let deltas = self.deltas(parts);
        let mut logprobs = None;
        if self.with_logprobs {
            let content = logprobs::of_chat(app.tokenizer()?, answer, self.told);
            self.told += content.len();
            logprobs = (!content.is_empty()).then(|| json!({ "content": content }));
        }
        if deltas.is_empty() && logprobs.is_some() {
            return Ok(vec![self.chunk(&json!({}), logprobs, None)]);
        }
        Ok(deltas.iter().map(|delta| self.chunk(delta, logprobs.take(), None)).collect())
    }

    fn end(&mut self, _: &ServedModel, answer: &Answer) -> Vec<Value> {
        vec![self.chunk(&json!({}), None, Some(answer.end_reason()))]
    }
}

/// The message of a complete answer.
pub(crate) fn message(parts: Vec<ToolPart>) -> Value {
    let (mut content, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
    for part in parts {
        match part {
            ToolPart::Text(text) => content.push_str(&text),
            ToolPart::Reasoning(text) => reasoning.push_str(&text),
            ToolPart::Call(call) => {
                let function = json!({ "name": call.name, "arguments": call.arguments });
                calls.push(json!({ "id": call.id, "type": "function", "function": function }));
            }
            _ => {}
        }
    }
    let mut message = json!({ "role": "assistant", "content": null, "refusal": null });
    if calls.is_empty() || !content.trim().is_empty() {
        message["content"] = content.into();
    }
    if !reasoning.is_empty() {
        message["reasoning_content"] = reasoning.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    message
}
