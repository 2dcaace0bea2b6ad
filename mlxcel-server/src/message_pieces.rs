//! The content blocks and events of a message.

use mlxcel_session::{FinishReason, ToolPart};
use serde_json::{Value, json};

use crate::answer::Answer;
use crate::failure::ApiError;
use crate::served::ServedModel;
use crate::sse::Pieces;

/// The names of this API for fields of a chat.
pub(crate) const NAMES: [(&str, &str); 3] = [
    ("stop", "stop_sequences"),
    ("response_format", "output_config.format"),
    ("reasoning_effort", "output_config.effort"),
];

/// A message in the making.
pub(crate) struct MessagePieces {
    id: String,
    model: String,
    stops: Vec<String>,
    /// The blocks that are complete.
    content: Vec<Value>,
    /// The kind of the block that is being written, itself, and its text.
    open: Option<(&'static str, Value, String)>,
}

impl MessagePieces {
    /// Of an answer that ends at `stops`.
    pub(crate) fn new(app: &ServedModel, stops: Vec<String>) -> Self {
        Self {
            id: format!("msg_{}", app.server.ids.next()),
            model: app.name.clone(),
            stops,
            content: Vec::new(),
            open: None,
        }
    }

    pub(crate) fn message(&self, app: &ServedModel, answer: &Answer) -> Value {
        let (reason, stop) = self.stop(app, answer);
        json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": self.content,
            "stop_reason": reason, "stop_sequence": stop, "usage": usage(answer),
        })
    }

    /// Why the answer ended, and the stop sequence that ended it.
    fn stop(&self, app: &ServedModel, answer: &Answer) -> (Value, Value) {
        match answer.finish_reason() {
            Some(FinishReason::Stop | FinishReason::StopString) if answer.has_calls() => {
                ("tool_use".into(), Value::Null)
            }
            Some(FinishReason::Stop) => ("end_turn".into(), Value::Null),
            Some(FinishReason::StopString) => ("stop_sequence".into(), self.found_stop(app, answer).into()),
            _ => ("max_tokens".into(), Value::Null),
        }
    }

    /// The stop sequence that the tokens contain: the text ends before it.
    fn found_stop(&self, app: &ServedModel, answer: &Answer) -> Option<&str> {
        let text = app.tokenizer().ok()?.decode(answer.tokens(), true).ok()?;
        let found = self.stops.iter().filter_map(|stop| Some((text.find(stop.as_str())?, stop)));
        found.min().map(|(_, stop)| stop.as_str())
    }

    /// Begins a block, after the one that is being written.
    fn begin_block(&mut self, kind: &'static str, block: Value) -> Vec<Value> {
        let mut events = self.end_block();
        let index = self.content.len();
        events.push(json!({ "type": "content_block_start", "index": index, "content_block": block }));
        self.open = Some((kind, block, String::new()));
        events
    }

    /// Adds to the block that is being written.
    fn add(&mut self, text: &str) -> Option<Value> {
        let index = self.content.len();
        let (kind, _, written) = self.open.as_mut()?;
        written.push_str(text);
        let delta = match *kind {
            "text" => json!({ "type": "text_delta", "text": text }),
            "thinking" => json!({ "type": "thinking_delta", "thinking": text }),
            _ => json!({ "type": "input_json_delta", "partial_json": text }),
        };
        Some(json!({ "type": "content_block_delta", "index": index, "delta": delta }))
    }

    fn end_block(&mut self) -> Vec<Value> {
        let Some((kind, mut block, text)) = self.open.take() else { return Vec::new() };
        let index = self.content.len();
        match kind {
            // An answer that was cut has a call that is not whole.
            "tool_use" => block["input"] = serde_json::from_str(&text).unwrap_or(json!({})),
            kind => block[kind] = text.into(),
        }
        self.content.push(block);
        vec![json!({ "type": "content_block_stop", "index": index })]
    }

    fn events(&mut self, parts: Vec<ToolPart>) -> Vec<Value> {
        let mut events = Vec::new();
        for part in parts {
            let (kind, block, text) = match part {
                ToolPart::Text(text) => ("text", json!({ "type": "text", "text": "" }), text),
                ToolPart::Reasoning(text) => {
                    ("thinking", json!({ "type": "thinking", "thinking": "", "signature": "" }), text)
                }
                ToolPart::Call(call) => {
                    let block = json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": {} });
                    ("tool_use", block, call.arguments)
                }
                _ => continue,
            };
            if kind == "tool_use" || self.open.as_ref().is_none_or(|(open, ..)| *open != kind) {
                events.extend(self.begin_block(kind, block));
            }
            events.extend(self.add(&text));
        }
        events
    }
}

/// The tokens of an answer, in Anthropic's words.
fn usage(answer: &Answer) -> Value {
    let usage = answer.usage().usage;
    json!({
        "input_tokens": usage.prompt_tokens - usage.reused_tokens, "output_tokens": usage.generated_tokens,
        "cache_creation_input_tokens": 0, "cache_read_input_tokens": usage.reused_tokens,
    })
}

impl Pieces for MessagePieces {
    const DONE: bool = false;

    fn begin(&mut self, app: &ServedModel, answer: &Answer) -> Vec<Value> {
        let mut message = self.message(app, answer);
        // An answer of one token may have ended already.
        (message["stop_reason"], message["stop_sequence"]) = (Value::Null, Value::Null);
        vec![json!({ "type": "message_start", "message": message })]
    }

    fn parts(&mut self, _: &ServedModel, _: &Answer, parts: Vec<ToolPart>) -> Result<Vec<Value>, ApiError> {
        Ok(self.events(parts))
    }

    fn end(&mut self, app: &ServedModel, answer: &Answer) -> Vec<Value> {
        let mut events = self.end_block();
        let (reason, stop) = self.stop(app, answer);
        let delta = json!({ "stop_reason": reason, "stop_sequence": stop });
        events.push(json!({ "type": "message_delta", "delta": delta, "usage": usage(answer) }));
        events.push(json!({ "type": "message_stop" }));
        events
    }

    fn error(error: &ApiError) -> Value {
        error.clone().renamed(&NAMES).anthropic_json()
    }
}
