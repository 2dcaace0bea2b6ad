//! `/v1/messages`: a chat in the words of Anthropic's API. Nothing is stored, so each request has the whole
//! conversation.

use axum::Json;
use axum::extract::Request;
use axum::http::header;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Number, Value, json};

use crate::body::{Asked, Body};
use crate::chat::{self, Begun, ChatRequest, begin};
use crate::content::{self, text_of_part};
use crate::failure::ApiError;
use crate::kinds::{Field, Kind, Object};
use crate::message_pieces::{MessagePieces, NAMES};
use crate::{model_list, sse};

#[derive(Deserialize)]
pub(crate) struct MessageRequest {
    max_tokens: u64,
    stream: Option<bool>,
    stop_sequences: Option<Vec<String>>,
    temperature: Option<Number>,
    top_p: Option<Number>,
    top_k: Option<i64>,
    #[serde(flatten)]
    conversation: Conversation,
}

/// The part of a request that is rendered as the prompt.
#[derive(Deserialize)]
struct Conversation {
    messages: Vec<Value>,
    system: Option<Value>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    thinking: Option<Object<Thinking>>,
    /// The effort, and the format of the answer.
    output_config: Option<Object>,
}

/// Whether the model thinks before it answers; how long is up to the model.
#[derive(Deserialize)]
struct Thinking {
    #[serde(rename = "type")]
    kind: ThinkingKind,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum ThinkingKind {
    Enabled,
    Disabled,
    Adaptive,
}

/// A request that asks for the length of a prompt.
#[derive(Deserialize)]
pub(crate) struct CountRequest {
    #[serde(flatten)]
    conversation: Conversation,
}

/// The path that the paths of Anthropic's API begin with.
const PATH: &str = "/v1/messages";
const THINKING: Kind =
    Kind::Object(&[Field::required("type", Kind::Words(&["enabled", "disabled", "adaptive"]))]);
const MESSAGE: Kind = Kind::Object(&[Field::required("role", Kind::Words(&["user", "assistant", "system"]))]);
const TOOL_USE: Kind = Kind::Object(&[
    Field::required("id", Kind::Text),
    Field::required("name", Kind::Text),
    Field::required("input", Kind::Object(&[])),
]);
const TOOL_RESULT: Kind =
    Kind::Object(&[Field::required("tool_use_id", Kind::Text), Field::new("is_error", Kind::Flag)]);
const CONVERSATION: [Field; 6] = [
    Field::required("messages", Kind::List(&Kind::Any)),
    Field::new("system", Kind::Any),
    Field::new("tools", Kind::List(&Kind::Any)),
    Field::new("tool_choice", Kind::Any),
    Field::new("thinking", THINKING),
    Field::new("output_config", Kind::Object(&[])),
];

impl Asked for MessageRequest {
    fn fields() -> Vec<Field> {
        const FIELDS: [Field; 6] = [
            Field::required("max_tokens", Kind::Count),
            Field::new("stream", Kind::Flag),
            Field::new("stop_sequences", Kind::List(&Kind::Text)),
            Field::new("temperature", Kind::Number),
            Field::new("top_p", Kind::Number),
            Field::new("top_k", Kind::Integer),
        ];
        [&CONVERSATION[..], &FIELDS].concat()
    }
}

impl Asked for CountRequest {
    fn fields() -> Vec<Field> {
        CONVERSATION.to_vec()
    }
}

impl MessageRequest {
    fn chat(&self) -> Result<ChatRequest, ApiError> {
        let mut chat = self.conversation.chat()?;
        chat["max_tokens"] = self.max_tokens.into();
        chat["temperature"] = json!(self.temperature);
        chat["top_p"] = json!(self.top_p);
        chat["top_k"] = json!(self.top_k);
        chat["stop"] = json!(self.stop_sequences);
        chat["stream"] = json!(self.stream);
        ChatRequest::of(chat)
    }
}

impl Conversation {
    /// The fields of a chat that make the prompt.
    fn chat(&self) -> Result<Value, ApiError> {
        if self.messages.is_empty() {
            return Err(ApiError::invalid("messages", "at least one message, beside the system's"));
        }
        let mut messages = Vec::new();
        if let Some(system) = &self.system {
            messages.push(json!({ "role": "system", "content": text_of(system, "system")? }));
        }
        for (index, message) in self.messages.iter().enumerate() {
            let path = format!("messages[{index}]");
            MESSAGE.check(message, &path)?;
            let (content, path) = (&message["content"], format!("{path}.content"));
            match message["role"].as_str() {
                Some("user") => user(content, &path, &mut messages)?,
                Some("assistant") => messages.push(assistant(content, &path)?),
                _ => messages.push(json!({ "role": "system", "content": text_of(content, &path)? })),
            }
        }
        // The answer goes on where the last message of the assistant ends.
        let is_begun = self.messages.last().is_some_and(|message| message["role"] == "assistant");
        let tools = self.tools.iter().flatten().map(tool).collect::<Result<Vec<_>, _>>()?;
        let mut chat = json!({ "continue_final_message": is_begun, "messages": messages, "tools": tools });
        if let Some(choice) = &self.tool_choice {
            chat["tool_choice"] = tool_choice(choice)?;
            chat["parallel_tool_calls"] = (choice["disable_parallel_tool_use"] != true).into();
        }
        if let Some(Object(thinking)) = &self.thinking {
            let thinks = !matches!(thinking.kind, ThinkingKind::Disabled);
            chat["chat_template_kwargs"] = json!({ "enable_thinking": thinks });
        }
        if let Some(Object(config)) = &self.output_config {
            chat["reasoning_effort"] = config["effort"].clone();
            chat["response_format"] = match &config["format"] {
                Value::Null => Value::Null,
                format => json!({ "type": format["type"], "json_schema": format }),
            };
        }
        Ok(chat)
    }
}

fn text_of(content: &Value, path: &str) -> Result<String, ApiError> {
    content::text_of(content, &TEXT, path)
}

/// The parts of content that are text.
const TEXT: [&str; 1] = ["text"];

/// What the result of a tool that failed begins with.
const FAILED: &str = "Error: ";

/// Adds what a user says, the content at `path`: results of tools are messages of their own.
fn user(content: &Value, path: &str, messages: &mut Vec<Value>) -> Result<(), ApiError> {
    let Value::Array(blocks) = content else {
        messages.push(json!({ "role": "user", "content": text_of(content, path)? }));
        return Ok(());
    };
    let mut text = String::new();
    for (index, block) in blocks.iter().enumerate() {
        let path = format!("{path}[{index}]");
        if block["type"] != "tool_result" {
            text.push_str(text_of_part(block, &TEXT, &path)?);
            continue;
        }
        TOOL_RESULT.check(block, &path)?;
        let mut result = match &block["content"] {
            Value::Null => String::new(),
            content => text_of(content, &format!("{path}.content"))?,
        };
        if block["is_error"] == true {
            // Templates have no field for it.
            result.insert_str(0, FAILED);
        }
        messages.push(json!({ "role": "tool", "tool_call_id": block["tool_use_id"], "content": result }));
    }
    if !text.is_empty() || blocks.is_empty() {
        messages.push(json!({ "role": "user", "content": text }));
    }
    Ok(())
}

/// What the assistant said and called, the content at `path`; its thoughts are no part of the conversation.
fn assistant(content: &Value, path: &str) -> Result<Value, ApiError> {
    let Value::Array(blocks) = content else {
        return Ok(json!({ "role": "assistant", "content": text_of(content, path)? }));
    };
    let (mut text, mut calls) = (String::new(), Vec::new());
    for (index, block) in blocks.iter().enumerate() {
        let path = format!("{path}[{index}]");
        match block["type"].as_str() {
            Some("thinking" | "redacted_thinking") => {}
            Some("tool_use") => {
                TOOL_USE.check(block, &path)?;
                let function = json!({ "name": block["name"], "arguments": block["input"].to_string() });
                calls.push(json!({ "id": block["id"], "type": "function", "function": function }));
            }
            _ => text.push_str(text_of_part(block, &TEXT, &path)?),
        }
    }
    let mut message = json!({ "role": "assistant", "content": text });
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    Ok(message)
}

fn tool(tool: &Value) -> Result<Value, ApiError> {
    match tool["type"].as_str() {
        None | Some("custom") => {
            let function = json!({
                "name": tool["name"], "description": tool["description"], "parameters": tool["input_schema"],
            });
            Ok(json!({ "type": "function", "function": function }))
        }
        Some(kind) => Err(ApiError::unsupported("tools", &format!("a tool of type {kind:?}"))),
    }
}

fn tool_choice(choice: &Value) -> Result<Value, ApiError> {
    match choice["type"].as_str() {
        Some("auto") => Ok("auto".into()),
        Some("any") => Ok("required".into()),
        Some("none") => Ok("none".into()),
        Some("tool") => Ok(json!({ "type": "function", "function": { "name": choice["name"] } })),
        _ => Err(ApiError::invalid("tool_choice", "the type of tool_choice must be auto, any, tool or none")),
    }
}

pub(crate) async fn answer(body: Body<MessageRequest>) -> Result<Response, ApiError> {
    answer_as_chat(body).await.map_err(|error| error.renamed(&NAMES))
}

async fn answer_as_chat(Body { request, app, sender }: Body<MessageRequest>) -> Result<Response, ApiError> {
    app.expect_generation()?;
    let chat = request.chat()?;
    let is_stream = request.stream.unwrap_or(false);
    let Begun { answers, .. } = begin(&app, chat, sender).await?;
    let pieces = MessagePieces::new(&app, request.stop_sequences.unwrap_or_default());
    sse::respond_alone(app, answers, pieces, is_stream, MessagePieces::message).await
}

/// `/v1/messages/count_tokens`: how long the prompt of a request would be.
pub(crate) async fn count(
    Body { request, app, sender }: Body<CountRequest>,
) -> Result<Json<Value>, ApiError> {
    let mut chat = request.conversation.chat()?;
    chat["max_tokens"] = 1.into();
    let tokens = async { chat::count(app, ChatRequest::of(chat)?, sender).await };
    let tokens = tokens.await.map_err(|error| error.renamed(&NAMES))?;
    Ok(Json(json!({ "input_tokens": tokens })))
}

/// Answers on the paths of Anthropic's API with errors in its format, also those of methods that a path does
/// not support.
pub(crate) async fn errors(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_anthropic = path == PATH
        || path.strip_prefix(PATH).is_some_and(|below| below.starts_with('/'))
        || model_list::is_anthropic(path, request.headers());
    let response = next.run(request).await;
    if is_anthropic { with_anthropic_error(response) } else { response }
}

/// An answer with its error, if it is one, in Anthropic's format.
fn with_anthropic_error(mut response: Response) -> Response {
    match response.extensions_mut().remove::<ApiError>() {
        None => response,
        Some(error) => {
            let body = Json(error.anthropic_json()).into_response().into_body();
            response.headers_mut().remove(header::CONTENT_LENGTH);
            response.map(|_| body)
        }
    }
}
