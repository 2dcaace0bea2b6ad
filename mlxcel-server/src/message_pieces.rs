//! The content blocks and events of a message.

use mlxcel_session::{FinishReason, RequestStream, ToolPart};
use serde_json::{Value, json};

use crate::answer::{AnswerFormat, AnswerReader};
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
    prompt_tokens: usize,
    stops: Vec<String>,
    answer: AnswerReader,
    /// The blocks that are complete.
    content: Vec<Value>,
    /// The kind of the block that is being written, itself, and its text.
    open: Option<(&'static str, Value, String)>,
}

impl MessagePieces {
    /// Of the answer of `stream`, which ends at `stops`.
    pub(crate) fn new(
        app: &ServedModel,
        stream: &RequestStream,
        stops: Vec<String>,
        format: &AnswerFormat,
    ) -> Self {
        Self {
            id: format!("msg_{}", app.server.ids.next()),
            model: app.name.clone(),
            prompt_tokens: stream.prompt_tokens(),
            stops,
            answer: AnswerReader::new(format, stream),
            content: Vec::new(),
            open: None,
        }
    }

    /// The message as it is now; complete with the stream that has ended.
    pub(crate) fn whole(&self, app: &ServedModel, ended: Option<&RequestStream>) -> Value {
        let (reason, stop) = ended.map_or((Value::Null, Value::Null), |stream| self.stop(app, stream));
        let usage = match ended {
            Some(stream) => usage(stream),
            None => json!({
                "input_tokens": self.prompt_tokens, "output_tokens": 0,
                "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
            }),
        };
        json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": self.content,
            "stop_reason": reason, "stop_sequence": stop, "usage": usage,
        })
    }

    /// Why the answer ended, and the stop sequence that ended it.
    fn stop(&self, app: &ServedModel, stream: &RequestStream) -> (Value, Value) {
        match stream.finish_reason() {
            Some(FinishReason::Stop | FinishReason::StopString) if self.answer.has_calls() => {
                ("tool_use".into(), Value::Null)
            }
            Some(FinishReason::Stop) => ("end_turn".into(), Value::Null),
            Some(FinishReason::StopString) => ("stop_sequence".into(), self.found_stop(app, stream).into()),
            _ => ("max_tokens".into(), Value::Null),
        }
    }

    /// The stop sequence that the tokens contain: the text ends before it.
    fn found_stop(&self, app: &ServedModel, stream: &RequestStream) -> Option<&str> {
        let text = app.tokenizer().ok()?.decode(stream.tokens(), true).ok()?;
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

    /// The events of parts.
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
fn usage(stream: &RequestStream) -> Value {
    let usage = stream.usage();
    json!({
        "input_tokens": usage.prompt_tokens - usage.reused_tokens, "output_tokens": usage.generated_tokens,
        "cache_creation_input_tokens": 0, "cache_read_input_tokens": usage.reused_tokens,
    })
}

impl Pieces for MessagePieces {
    const DONE: bool = false;

    fn begin(&mut self, app: &ServedModel) -> Vec<Value> {
        vec![json!({ "type": "message_start", "message": self.whole(app, None) })]
    }

    fn piece(&mut self, app: &ServedModel, _: &RequestStream, text: &str) -> Result<Vec<Value>, ApiError> {
        let parts = self.answer.push(app, text);
        Ok(self.events(parts))
    }

    fn end(&mut self, app: &ServedModel, stream: &RequestStream) -> Vec<Value> {
        let parts = self.answer.end(app);
        let mut events = self.events(parts);
        events.extend(self.end_block());
        let (reason, stop) = self.stop(app, stream);
        let delta = json!({ "stop_reason": reason, "stop_sequence": stop });
        events.push(json!({ "type": "message_delta", "delta": delta, "usage": usage(stream) }));
        events.push(json!({ "type": "message_stop" }));
        events
    }

    fn error(error: &ApiError) -> Value {
        error.clone().renamed(&NAMES).anthropic_json()
    }
}
