//! `/v1/responses`: a chat in the words of OpenAI's newer API. Nothing is stored, so each request has the
//! whole conversation.

use axum::Json;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Number, Value, json};

use crate::body::{Asked, Body};
use crate::chat::{self, Begun, ChatRequest, begin};
use crate::content::text_of;
use crate::failure::ApiError;
use crate::kinds::{Field, Kind, Object};
use crate::response_pieces::{NAMES, ResponsePieces};
use crate::sse;

#[derive(Deserialize)]
pub(crate) struct ResponseRequest {
    input: Input,
    instructions: Option<String>,
    max_output_tokens: Option<u64>,
    text: Option<Object>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    reasoning: Option<Object>,
    previous_response_id: Option<String>,
    include: Option<Vec<String>>,
    stream: Option<bool>,
    temperature: Option<Number>,
    top_p: Option<Number>,
    parallel_tool_calls: Option<bool>,
}

impl Asked for ResponseRequest {
    fn fields() -> Vec<Field> {
        vec![
            Field::required("input", Kind::Either(&[Kind::Text, Kind::List(&Kind::Any)])),
            Field::new("instructions", Kind::Text),
            Field::new("max_output_tokens", Kind::Count),
            Field::new("text", Kind::Object(&[])),
            Field::new("tools", Kind::List(&Kind::Any)),
            Field::new("tool_choice", Kind::Any),
            Field::new("reasoning", Kind::Object(&[])),
            Field::new("previous_response_id", Kind::Text),
            Field::new("include", Kind::List(&Kind::Text)),
            Field::new("stream", Kind::Flag),
            // The last event has the usage, whatever they say.
            Field::new("stream_options", Kind::Any),
            Field::new("temperature", Kind::Number),
            Field::new("top_p", Kind::Number),
            Field::new("parallel_tool_calls", Kind::Flag),
        ]
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Input {
    Text(String),
    Items(Vec<Value>),
}

impl ResponseRequest {
    fn chat(&self) -> Result<ChatRequest, ApiError> {
        if self.previous_response_id.is_some() {
            return Err(ApiError::unsupported("previous_response_id", "stored responses"));
        }
        if self.include.iter().flatten().any(|what| what != "reasoning.encrypted_content") {
            return Err(ApiError::unsupported("include", "more output"));
        }
        let format = self.text.as_ref().map(|Object(text)| match text["format"]["type"].as_str() {
            Some("json_schema") => json!({ "type": "json_schema", "json_schema": text["format"] }),
            _ => text["format"].clone(),
        });
        let wrapped = |tool: &Value| match tool["type"].as_str() {
            Some("function") => json!({ "type": "function", "function": tool }),
            _ => tool.clone(),
        };
        let choice = self.tool_choice.as_ref();
        ChatRequest::of(json!({
            "messages": self.messages()?, "max_tokens": self.max_output_tokens, "stream": self.stream,
            "temperature": self.temperature, "top_p": self.top_p, "response_format": format,
            "reasoning_effort": self.reasoning.as_ref().map(|reasoning| &reasoning.0["effort"]),
            "tools": self.tools.iter().flatten().map(wrapped).collect::<Vec<_>>(),
            "tool_choice": choice.map(|choice| if choice.is_object() { wrapped(choice) } else { choice.clone() }),
            "parallel_tool_calls": self.parallel_tool_calls,
        }))
    }

    fn messages(&self) -> Result<Vec<Value>, ApiError> {
        let mut messages = Vec::new();
        messages.extend(self.instructions.as_ref().map(|text| json!({ "role": "system", "content": text })));
        match &self.input {
            Input::Text(text) => messages.push(json!({ "role": "user", "content": text })),
            Input::Items(items) => {
                for (index, item) in items.iter().enumerate() {
                    add(item, &format!("input[{index}]"), &mut messages)?;
                }
            }
        }
        Ok(messages)
    }
}

const CALL_ID: Field = Field::required("call_id", Kind::Text);
const CALL: Kind = Kind::Object(&[
    CALL_ID,
    Field::required("name", Kind::Text),
    Field::required("arguments", chat::ARGUMENTS),
]);

/// Adds the item of the input at `path` to the conversation.
fn add(item: &Value, path: &str, messages: &mut Vec<Value>) -> Result<(), ApiError> {
    match item["type"].as_str().unwrap_or("message") {
        "message" => {
            chat::MESSAGE.check(item, path)?;
            let content = content(&item["content"], &format!("{path}.content"))?;
            messages.push(json!({ "role": item["role"], "content": content }));
        }
        "function_call" => {
            CALL.check(item, path)?;
            let function = json!({ "name": item["name"], "arguments": item["arguments"] });
            let call = json!({ "id": item["call_id"], "type": "function", "function": function });
            add_call(call, messages);
        }
        "function_call_output" => {
            Kind::Object(&[CALL_ID]).check(item, path)?;
            let content = content(&item["output"], &format!("{path}.output"))?;
            messages.push(json!({ "role": "tool", "tool_call_id": item["call_id"], "content": content }));
        }
        // It has no part in the conversation.
        "reasoning" => {}
        other => return Err(ApiError::unsupported(path, &format!("an item of type {other:?}"))),
    }
    Ok(())
}

/// Adds a call to the assistant's turn: its text and its calls are one message of a chat.
fn add_call(call: Value, messages: &mut Vec<Value>) {
    match messages.last_mut().filter(|last| last["role"] == "assistant") {
        None => messages.push(json!({ "role": "assistant", "content": null, "tool_calls": [call] })),
        Some(turn) => match turn["tool_calls"].as_array_mut() {
            None => turn["tool_calls"] = json!([call]),
            Some(calls) => calls.push(call),
        },
    }
}

fn content(content: &Value, path: &str) -> Result<String, ApiError> {
    text_of(content, &["input_text", "output_text", "text"], path)
}

pub(crate) async fn respond(body: Body<ResponseRequest>) -> Result<Response, ApiError> {
    respond_as_chat(body).await.map_err(|error| error.renamed(&NAMES))
}

/// `/v1/responses/input_tokens`: how long the prompt of a request would be.
pub(crate) async fn count(
    Body { mut request, app, sender }: Body<ResponseRequest>,
) -> Result<Json<Value>, ApiError> {
    request.max_output_tokens = Some(1);
    let tokens = async { chat::count(app, request.chat()?, sender).await };
    let tokens = tokens.await.map_err(|error| error.renamed(&NAMES))?;
    Ok(Json(json!({ "object": "response.input_tokens", "input_tokens": tokens })))
}

async fn respond_as_chat(Body { request, app, sender }: Body<ResponseRequest>) -> Result<Response, ApiError> {
    app.expect_generation()?;
    let chat = request.chat()?;
    let echoed = json!({
        "instructions": request.instructions, "max_output_tokens": request.max_output_tokens,
        "temperature": request.temperature, "top_p": request.top_p,
        "tools": request.tools.unwrap_or_default(), "tool_choice": request.tool_choice.unwrap_or("auto".into()),
        "parallel_tool_calls": request.parallel_tool_calls.unwrap_or(true),
        "text": request.text.map_or_else(|| json!({ "format": { "type": "text" } }), |text| text.0),
    });
    let is_stream = request.stream.unwrap_or(false);
    let Begun { answers, .. } = begin(&app, chat, sender).await?;
    let pieces = ResponsePieces::new(&app, echoed);
    sse::respond_alone(app, answers, pieces, is_stream, |pieces, _, answer| pieces.whole(Some(answer))).await
}
