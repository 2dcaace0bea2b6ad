//! The items and events of a response.

use mlxcel_session::ToolPart;
use serde_json::{Value, json};

use crate::answer::Answer;
use crate::failure::ApiError;
use crate::served::{ServedModel, unix_time};
use crate::sse::Pieces;
use crate::usage::AnswerUsage;

/// The names of this API for fields of a chat.
pub(crate) const NAMES: [(&str, &str); 4] = [
    ("messages", "input"),
    ("max_tokens", "max_output_tokens"),
    ("response_format", "text.format"),
    ("reasoning_effort", "reasoning.effort"),
];

/// The status of an answer that has ended, and of its last item.
fn status(answer: &Answer) -> &'static str {
    if answer.end_reason() == "length" { "incomplete" } else { "completed" }
}

/// An object with the fields of another one too.
fn with(mut object: Value, more: Value) -> Value {
    if let (Some(object), Value::Object(more)) = (object.as_object_mut(), more) {
        object.extend(more);
    }
    object
}

/// A response in the making.
pub(crate) struct ResponsePieces {
    id: String,
    created: u64,
    model: String,
    /// The fields that repeat those of the request.
    echoed: Value,
    /// How many events were sent.
    sent: u64,
    /// The items that are complete.
    output: Vec<Value>,
    /// The kind of the item that is being written, and its text.
    open: Option<(&'static str, Value, String)>,
}

impl ResponsePieces {
    /// Of an answer; `echoed` are fields that repeat those of the request.
    pub(crate) fn new(app: &ServedModel, echoed: Value) -> Self {
        Self {
            id: app.server.ids.next(),
            created: unix_time(),
            model: app.name.clone(),
            echoed,
            sent: 0,
            output: Vec::new(),
            open: None,
        }
    }

    /// The response as it is now; complete with the answer that has ended.
    pub(crate) fn whole(&self, ended: Option<&Answer>) -> Value {
        let status = ended.map_or("in_progress", status);
        let is_cut = status == "incomplete";
        let response = json!({
            "id": format!("resp_{}", self.id), "object": "response", "created_at": self.created, "status": status,
            "model": self.model, "output": self.output, "error": null,
            "incomplete_details": if is_cut { json!({ "reason": "max_output_tokens" }) } else { Value::Null },
            "usage": ended.map(|answer| {
                let AnswerUsage { usage, reasoning_tokens } = answer.usage();
                let details = json!({ "cached_tokens": usage.reused_tokens, "cache_write_tokens": 0 });
                json!({
                    "input_tokens": usage.prompt_tokens, "input_tokens_details": details,
                    "output_tokens": usage.generated_tokens,
                    "output_tokens_details": { "reasoning_tokens": reasoning_tokens.unwrap_or(0) },
                    "total_tokens": usage.prompt_tokens + usage.generated_tokens,
                })
            }),
            "previous_response_id": null, "store": false, "truncation": "disabled", "metadata": {},
            "reasoning": { "effort": null, "summary": null },
        });
        with(response, self.echoed.clone())
    }

    fn event(&mut self, kind: &str, fields: Value) -> Value {
        self.sent += 1;
        with(json!({ "type": kind, "sequence_number": self.sent - 1 }), fields)
    }

    /// The event that an item of this kind makes of a delta or its end.
    fn name(kind: &str, what: &str) -> String {
        match kind {
            "message" => format!("response.output_text.{what}"),
            "reasoning" => format!("response.reasoning_text.{what}"),
            _ => format!("response.function_call_arguments.{what}"),
        }
    }

    /// Begins an item, after the one that is being written.
    fn begin_item(&mut self, kind: &'static str, more: Value) -> Vec<Value> {
        let mut events = self.end_item("completed");
        let index = self.output.len();
        let prefix = match kind {
            "message" => "msg",
            "reasoning" => "rs",
            _ => "fc",
        };
        let item =
            json!({ "type": kind, "id": format!("{prefix}_{}_{index}", self.id), "status": "in_progress" });
        let item = with(item, more);
        events.push(self.event("response.output_item.added", json!({ "output_index": index, "item": item })));
        if kind == "message" {
            let part = json!({ "type": "output_text", "text": "", "annotations": [], "logprobs": [] });
            let place =
                json!({ "output_index": index, "item_id": item["id"], "content_index": 0, "part": part });
            events.push(self.event("response.content_part.added", place));
        }
        self.open = Some((kind, item, String::new()));
        events
    }

    /// Adds to the item that is being written.
    fn add(&mut self, text: &str) -> Option<Value> {
        let index = self.output.len();
        let (kind, item, written) = self.open.as_mut()?;
        written.push_str(text);
        let mut place = json!({ "output_index": index, "item_id": item["id"], "delta": text });
        if *kind != "function_call" {
            place["content_index"] = 0.into();
        }
        if *kind == "message" {
            place["logprobs"] = json!([]);
        }
        let name = Self::name(kind, "delta");
        Some(self.event(&name, place))
    }

    /// Ends the item that is being written.
    fn end_item(&mut self, status: &str) -> Vec<Value> {
        let Some((kind, mut item, text)) = self.open.take() else { return Vec::new() };
        let index = self.output.len();
        let place = json!({ "output_index": index, "item_id": item["id"] });
        let with = |more: Value| with(place.clone(), more);
        let name = Self::name(kind, "done");
        item["status"] = status.into();
        let mut events = Vec::new();
        match kind {
            "message" => {
                let part = json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] });
                events.push(
                    self.event(&name, with(json!({ "content_index": 0, "text": text, "logprobs": [] }))),
                );
                let fields = with(json!({ "content_index": 0, "part": part }));
                events.push(self.event("response.content_part.done", fields));
                item["content"] = json!([part]);
            }
            "reasoning" => {
                events.push(self.event(&name, with(json!({ "content_index": 0, "text": text }))));
                item["content"] = json!([{ "type": "reasoning_text", "text": text }]);
            }
            _ => {
                let fields = with(json!({ "name": item["name"], "arguments": text }));
                events.push(self.event(&name, fields));
                item["arguments"] = text.into();
            }
        }
        events.push(self.event("response.output_item.done", json!({ "output_index": index, "item": item })));
        self.output.push(item);
        events
    }

    fn events(&mut self, parts: Vec<ToolPart>) -> Vec<Value> {
        let mut events = Vec::new();
        for part in parts {
            let (kind, item, text) = match part {
                ToolPart::Text(text) => ("message", json!({ "role": "assistant", "content": [] }), text),
                ToolPart::Reasoning(text) => ("reasoning", json!({ "summary": [], "content": [] }), text),
                ToolPart::Call(call) => {
                    let item = json!({ "call_id": call.id, "name": call.name, "arguments": "" });
                    ("function_call", item, call.arguments)
                }
                _ => continue,
            };
            if kind == "function_call" || self.open.as_ref().is_none_or(|(open, ..)| *open != kind) {
                events.extend(self.begin_item(kind, item));
            }
            events.extend(self.add(&text));
        }
        events
    }
}

impl Pieces for ResponsePieces {
    const DONE: bool = false;

    fn error(error: &ApiError) -> Value {
        error.clone().renamed(&NAMES).json()
    }

    fn begin(&mut self, _: &ServedModel, _: &Answer) -> Vec<Value> {
        let response = json!({ "response": self.whole(None) });
        ["response.created", "response.in_progress"].map(|kind| self.event(kind, response.clone())).to_vec()
    }

    fn parts(&mut self, _: &ServedModel, _: &Answer, parts: Vec<ToolPart>) -> Result<Vec<Value>, ApiError> {
        Ok(self.events(parts))
    }

    fn end(&mut self, _: &ServedModel, answer: &Answer) -> Vec<Value> {
        let status = status(answer);
        let mut events = self.end_item(status);
        let response = self.whole(Some(answer));
        let kind = format!("response.{status}");
        events.push(self.event(&kind, json!({ "response": response })));
        events
    }
}
