//! `/v1/chat/completions`.

use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use mlxcel_session::{ChatOptions, Message, Options, Request};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::answer::{Answer, AnswerFormat};
use crate::body::{Asked, Body};
use crate::chat_pieces::{ChatPieces, message};
use crate::content::text_of;
use crate::failure::ApiError;
use crate::fields::Fields;
use crate::header::Header;
use crate::kinds::{self, Field, Kind};
use crate::logprobs;
use crate::sender::Sender;
use crate::served::ServedModel;
use crate::spans::{CHAT, RequestSpan};
use crate::sse;
use crate::tools::{self, ToolFields};
use crate::usage::{AnswerUsage, ApiUsage};

#[derive(Deserialize)]
pub(crate) struct ChatRequest {
    messages: Vec<ChatMessage>,
    logprobs: Option<bool>,
    top_logprobs: Option<u64>,
    /// Variables of the chat template, as other servers take them.
    chat_template_kwargs: Option<Map<String, Value>>,
    /// Templates of models that have such levels look at it.
    reasoning_effort: Option<String>,
    modalities: Option<Vec<String>>,
    /// Whether the answer goes on where the last message ends.
    continue_final_message: Option<bool>,
    #[serde(flatten)]
    tools: ToolFields,
    #[serde(flatten)]
    fields: Fields,
}

impl Asked for ChatRequest {
    fn fields() -> Vec<Field> {
        const FIELDS: [Field; 10] = [
            Field::required("messages", Kind::List(&MESSAGE)),
            Field::new("logprobs", Kind::Flag),
            Field::new("top_logprobs", Kind::Count),
            Field::new("chat_template_kwargs", Kind::Map(&Kind::Any)),
            Field::new("reasoning_effort", Kind::Text),
            Field::new("modalities", Kind::List(&Kind::Text)),
            Field::new("continue_final_message", Kind::Flag),
            Field::new("tools", Kind::List(&Kind::Any)),
            Field::new("tool_choice", Kind::Any),
            Field::new("parallel_tool_calls", Kind::Flag),
        ];
        FIELDS.into_iter().chain(Fields::fields()).collect()
    }
}

pub(crate) const MESSAGE: Kind = Kind::Object(&[Field::required("role", Kind::Text)]);
/// The arguments of a call: a JSON object, or its text.
pub(crate) const ARGUMENTS: Kind = Kind::Either(&[Kind::Text, Kind::Map(&Kind::Any)]);
const FUNCTION: Kind =
    Kind::Object(&[Field::required("name", Kind::Text), Field::new("arguments", ARGUMENTS)]);
const CALLS: Kind = Kind::List(&Kind::Object(&[Field::required("function", FUNCTION)]));
/// Fields of messages that templates print.
const EXTRA: [(&str, Kind); 3] = [("tool_calls", CALLS), ("tool_call_id", Kind::Text), ("name", Kind::Text)];

impl ChatRequest {
    /// The request with the fields of `chat`, which a request of another API has become.
    pub(crate) fn of(chat: Value) -> Result<Self, ApiError> {
        match chat.as_object().and_then(|chat| kinds::wrong_field(&Self::fields(), chat)) {
            Some(error) => Err(error),
            None => serde_json::from_value(chat).map_err(|error| ApiError::invalid("", error.to_string())),
        }
    }
}

#[derive(Deserialize)]
struct ChatMessage {
    role: String,
    content: Option<Value>,
    #[serde(flatten)]
    extra: Map<String, Value>,
}

impl ChatMessage {
    fn into_message(self, path: &str) -> Result<Message, ApiError> {
        let place = format!("{path}.content");
        // It says nothing, though only content could.
        if self.content.is_none() && ["user", "system", "developer"].contains(&self.role.as_str()) {
            let message = format!("{place} is required: a string or a list of parts");
            return Err(ApiError::invalid(&place, message));
        }
        let text = self.content.map(|content| text_of(&content, &["text"], &place)).transpose()?;
        let mut message = Message::new(self.role, text.unwrap_or_default());
        message.extra = self.extra;
        // Clients send fields that say nothing, and templates may ask only whether a field is there.
        message.extra.retain(|_, value| !value.is_null());
        for (name, kind) in EXTRA {
            let value = message.extra.get(name);
            value.map_or(Ok(()), |value| kind.check(value, &format!("{path}.{name}")))?;
        }
        tools::read_arguments(&mut message.extra);
        Ok(message)
    }
}

/// A chat whose answers are on their way.
pub(crate) struct Begun {
    pub(crate) answers: Vec<Answer>,
    with_logprobs: bool,
    is_stream: bool,
    include_usage: bool,
}

/// A chat as it is submitted: for each answer the options.
struct Prepared {
    messages: Vec<Message>,
    options: Vec<Options>,
    format: AnswerFormat,
}

/// Reads a chat; `top` alternatives of each token are wanted.
fn prepare(app: &ServedModel, request: ChatRequest, top: u16) -> Result<(Prepared, Fields), ApiError> {
    let most = app.limits().messages;
    if !(1..=most).contains(&request.messages.len()) {
        return Err(ApiError::invalid("messages", format!("from 1 to {most} messages")));
    }
    if request.modalities.iter().flatten().any(|modality| modality != "text") {
        return Err(ApiError::unsupported("modalities", "an answer that is not text"));
    }
    let message =
        |(index, message): (usize, ChatMessage)| message.into_message(&format!("messages[{index}]"));
    let mut messages =
        request.messages.into_iter().enumerate().map(message).collect::<Result<Vec<_>, _>>()?;
    name_system_messages(app, &mut messages)?;
    let mut chat = ChatOptions::default();
    if request.continue_final_message == Some(true) {
        chat = chat.with_generation_prompt(false).with_continue_final_message(true);
    }
    chat.variables = request.chat_template_kwargs.unwrap_or_default();
    chat.variables
        .extend(request.reasoning_effort.map(|effort| ("reasoning_effort".to_owned(), effort.into())));
    let fields = request.fields;
    let tools = request.tools.tools(app)?;
    let has_format = fields.has_format();
    if tools.is_some() && has_format {
        return Err(ApiError::unsupported("response_format", "a format of the answer beside tools"));
    }
    let mut options = fields.options(app, top)?;
    let mut offered = Options::default().with_chat(chat);
    if let Some(tools) = &tools {
        let offer = tools.offer(&mut messages, &mut offered);
        offer.map_err(|error| ApiError::from(error).renamed(&[("mask", "tools")]))?;
    }
    for options in &mut options {
        options.chat.clone_from(&offered.chat);
        if offered.constraint.is_some() {
            options.constraint.clone_from(&offered.constraint);
        }
    }
    Ok((Prepared { messages, options, format: AnswerFormat { tools, has_format } }, fields))
}

/// Makes messages of the developer those of the system, unless the template reads that role: others leave such
/// messages out, or fail.
fn name_system_messages(app: &ServedModel, messages: &mut [Message]) -> Result<(), ApiError> {
    const DEVELOPER: &str = "developer";
    let template = app.tokenizer()?.chat_template();
    if template.is_some_and(|template| template.spells(DEVELOPER)) {
        return Ok(());
    }
    for message in messages.iter_mut().filter(|message| message.role == DEVELOPER) {
        "system".clone_into(&mut message.role);
    }
    Ok(())
}

/// How many tokens the prompt of a chat has.
pub(crate) async fn count(
    app: Arc<ServedModel>,
    request: ChatRequest,
    sender: Sender,
) -> Result<usize, ApiError> {
    let server = Arc::clone(&app.server);
    let count = move || {
        let (Prepared { messages, options, .. }, _) = prepare(&app, request, 0)?;
        let chat = options.into_iter().next().map(|options| options.chat).unwrap_or_default();
        Ok(app.tokenizer()?.encode_chat(&messages, &chat)?.len())
    };
    server.workers.run(sender.share.client, count).await?
}

/// Submits a chat.
pub(crate) async fn begin(
    app: &Arc<ServedModel>,
    request: ChatRequest,
    sender: Sender,
) -> Result<Begun, ApiError> {
    let with_logprobs = request.logprobs.unwrap_or(false);
    let most = app.limits().top_logprobs;
    let top = u16::try_from(request.top_logprobs.unwrap_or(0)).ok().filter(|&top| top <= most);
    let Some(top) = top.filter(|&top| top == 0 || with_logprobs) else {
        let message = format!("top_logprobs needs logprobs, and is at most {most}");
        return Err(ApiError::invalid("top_logprobs", message));
    };
    let (Prepared { messages, options, format }, fields) = prepare(app, request, top)?;
    let span = RequestSpan::new(CHAT, &app.name, options.len());
    let submitted = app
        .submit(sender, span, move |submit| {
            options.into_iter().try_for_each(|options| submit(Request::new(&messages).with_options(options)))
        })
        .await;
    // Either of them becomes a mask of tokens.
    let masked = if format.has_format { "response_format" } else { "tools" };
    let streams = submitted.map_err(|error| error.renamed(&[("mask", masked)]))?;
    let answers = streams.into_iter().map(|stream| Answer::of_chat(&format, stream)).collect();
    let (is_stream, include_usage) = (fields.stream.unwrap_or(false), fields.include_usage());
    Ok(Begun { answers, with_logprobs, is_stream, include_usage })
}

pub(crate) async fn answer(Body { request, app, sender }: Body<ChatRequest>) -> Result<Response, ApiError> {
    app.expect_generation()?;
    let Begun { mut answers, with_logprobs, is_stream, include_usage } = begin(&app, request, sender).await?;
    let header = |object| Header::new(&app, "chatcmpl", object);
    if is_stream {
        let header = header("chat.completion.chunk");
        let pieces = |(index, answer): (usize, Answer)| {
            (answer, ChatPieces::new(header.clone(), index, with_logprobs))
        };
        let answers = answers.into_iter().enumerate().map(pieces).collect();
        let last = header.clone();
        let usage = include_usage
            .then_some(move |usages: &[AnswerUsage]| last.message(&[], Some(ApiUsage::of(usages))));
        return sse::respond(app, answers, usage).await;
    }
    let wholes = Answer::all_whole(&mut answers, &app).await?;
    let mut choices = Vec::new();
    for (index, (answer, parts)) in answers.iter().zip(wholes).enumerate() {
        let logprobs = with_logprobs
            .then(|| Ok::<_, ApiError>(json!({ "content": logprobs::of_chat(app.tokenizer()?, answer, 0) })))
            .transpose()?;
        choices.push(json!({
            "index": index,
            "message": message(parts),
            "logprobs": logprobs,
            "finish_reason": answer.end_reason(),
        }));
    }
    let usages: Vec<_> = answers.iter().map(Answer::usage).collect();
    let answer = header("chat.completion").message(&choices, Some(ApiUsage::of(&usages)));
    Ok(Json(answer).into_response())
}
