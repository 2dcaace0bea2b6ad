//! `/v1/completions`.

use axum::Json;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use mlxcel_session::{Request, RequestStream, ToolPart};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answer::Answer;
use crate::body::{Asked, Body};
use crate::echo::{self, Echo};
use crate::failure::ApiError;
use crate::fields::Fields;
use crate::header::Header;
use crate::kinds::{Field, Kind};
use crate::logprobs::{self, TextLogprobs};
use crate::prompts::{OwnedPrompt, PROMPTS, Prompts};
use crate::served::ServedModel;
use crate::spans::{RequestSpan, TEXT_COMPLETION};
use crate::sse::{self, Pieces};
use crate::usage::{AnswerUsage, ApiUsage};

#[derive(Deserialize)]
pub(crate) struct CompletionRequest {
    prompt: Prompts,
    logprobs: Option<u64>,
    /// Whether answers begin with their prompts.
    echo: Option<bool>,
    #[serde(flatten)]
    fields: Fields,
}

impl Asked for CompletionRequest {
    fn fields() -> Vec<Field> {
        const FIELDS: [Field; 5] = [
            Field::required("prompt", PROMPTS),
            Field::new("logprobs", Kind::Count),
            Field::new("suffix", Kind::Text),
            Field::new("echo", Kind::Flag),
            Field::new("best_of", Kind::Count),
        ];
        FIELDS.into_iter().chain(Fields::fields()).collect()
    }
}

pub(crate) async fn complete(body: Body<CompletionRequest>) -> Result<Response, ApiError> {
    complete_prompts(body).await.map_err(|error| error.renamed(&NAMES))
}

async fn complete_prompts(
    Body { request, app, mut sender }: Body<CompletionRequest>,
) -> Result<Response, ApiError> {
    app.expect_generation()?;
    let (fields, limits) = (request.fields, app.limits());
    let logprobs = request.logprobs.map(|top| within(top, limits.logprobs)).transpose()?;
    let (top, with_logprobs) = (logprobs.unwrap_or(0), logprobs.is_some());
    let mut prompts = request.prompt.into_list(&app, "prompt", limits.prompts)?;
    let options = fields.options(&app, top)?;
    let answers_of_each = options.len();
    if prompts.len() * answers_of_each > limits.rows {
        return Err(ApiError::invalid("n", format!("prompts times n are at most {}", limits.rows)));
    }
    let (is_stream, include_usage) = (fields.stream.unwrap_or(false), fields.include_usage());
    let wants_none = fields.wants_none();
    let mut echoes = Vec::new();
    if request.echo == Some(true) {
        // Prompts take no more than the body did; a schema may.
        if !fields.has_format() {
            sender.leave_room();
        }
        echoes = echo::echoes(&app, sender.share, &prompts, logprobs).await?;
        // What is continued are the very tokens that are repeated.
        prompts = echoes.iter().map(|echo| OwnedPrompt::Tokens(echo.tokens.clone())).collect();
        if wants_none {
            return Ok(repeat(&app, &echoes, answers_of_each, is_stream.then_some(include_usage)));
        }
    }
    drop(fields);
    let span = RequestSpan::new(TEXT_COMPLETION, &app.name, answers_of_each);
    let streams = app
        .submit(sender, span, move |submit| {
            prompts.iter().try_for_each(|prompt| {
                options.iter().try_for_each(|options| {
                    submit(Request::new(prompt.as_prompt()).with_options(options.clone()))
                })
            })
        })
        .await?;
    let header = Header::new(&app, "cmpl", "text_completion");
    let pieces = |index: usize| {
        let echo = echoes.get(index / answers_of_each.max(1)).cloned();
        TextPieces { header: header.clone(), index, with_logprobs, echo, told: 0, offset: 0 }
    };
    let mut answers: Vec<_> = streams.into_iter().map(Answer::of_prompt).collect();
    if is_stream {
        let answers =
            answers.into_iter().enumerate().map(|(index, answer)| (answer, pieces(index))).collect();
        let last = header.clone();
        let usage = include_usage.then_some(move |usages: &[AnswerUsage]| {
            last.message(&[], usage_of_prompts(usages, answers_of_each))
        });
        return sse::respond(app, answers, usage).await;
    }
    let wholes = Answer::all_whole(&mut answers, &app).await?;
    let mut choices = Vec::new();
    for (index, (answer, parts)) in answers.iter().zip(wholes).enumerate() {
        let mut pieces = pieces(index);
        let (prompt, own) = pieces.take_echo();
        let logprobs = pieces.logprobs(&app, answer)?.map(|logprobs| match own {
            Some(own) => own.followed_by(logprobs),
            None => logprobs,
        });
        let logprobs = logprobs.map(|logprobs| json!(logprobs));
        let text = format!("{prompt}{}", text_of(parts));
        choices.push(pieces.choice(&text, logprobs, Some(answer.end_reason())));
    }
    let usages: Vec<_> = answers.iter().map(Answer::usage).collect();
    Ok(Json(header.message(&choices, usage_of_prompts(&usages, answers_of_each))).into_response())
}

/// The text of parts of a continuation, which has no others.
fn text_of(parts: Vec<ToolPart>) -> String {
    let texts = parts.into_iter().filter_map(|part| match part {
        ToolPart::Text(text) => Some(text),
        _ => None,
    });
    texts.collect()
}

/// The number of alternatives of each token, if it is at most `most`.
fn within(top: u64, most: u16) -> Result<u16, ApiError> {
    let top = u16::try_from(top).ok().filter(|&top| top <= most);
    top.ok_or_else(|| ApiError::invalid("logprobs", format!("logprobs is at most {most}")))
}

/// The usage of several prompts with so many answers each.
fn usage_of_prompts(answers: &[AnswerUsage], answers_of_each: usize) -> Option<ApiUsage> {
    answers.chunks(answers_of_each.max(1)).map(ApiUsage::of).reduce(ApiUsage::plus)
}

/// The prompts alone; as a stream if `stream` says whether that ends with the usage.
fn repeat(app: &ServedModel, echoes: &[Echo], answers_of_each: usize, stream: Option<bool>) -> Response {
    let header = Header::new(app, "cmpl", "text_completion");
    let usage = ApiUsage::of_prompts(echoes.iter().map(|echo| echo.tokens.len()).sum());
    let each = echoes.iter().flat_map(|echo| std::iter::repeat_n(echo, answers_of_each));
    let choices = each.enumerate().map(|(index, Echo { text, logprobs, .. })| {
        json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": "length" })
    });
    let Some(include_usage) = stream else {
        return Json(header.message(&choices.collect::<Vec<_>>(), Some(usage))).into_response();
    };
    let last = include_usage.then(|| header.message(&[], Some(usage)));
    let messages: Vec<Value> = choices.map(|choice| header.message(&[choice], None)).chain(last).collect();
    sse::events(stream::iter(messages), true)
}

/// The names of this API for fields of a chat, and of the SDK.
const NAMES: [(&str, &str); 2] = [("top_logprobs", "logprobs"), ("mask", "response_format")];

struct TextPieces {
    header: Header,
    index: usize,
    with_logprobs: bool,
    /// The prompt that the text begins with, until it is told.
    echo: Option<Echo>,
    /// How many tokens were told with their log probabilities, and where in the text the next one begins.
    told: usize,
    offset: usize,
}

impl TextPieces {
    /// The prompt that the text begins with, and its log probabilities; nothing if there is none, or it was
    /// told.
    fn take_echo(&mut self) -> (String, Option<TextLogprobs>) {
        let Some(Echo { text, logprobs, .. }) = self.echo.take() else { return Default::default() };
        self.offset = logprobs.as_ref().map_or(0, TextLogprobs::end);
        (text, logprobs)
    }

    fn logprobs(
        &mut self,
        app: &ServedModel,
        stream: &RequestStream,
    ) -> Result<Option<TextLogprobs>, ApiError> {
        if !self.with_logprobs {
            return Ok(None);
        }
        let logprobs = logprobs::of_text(app.tokenizer()?, stream, self.told, &mut self.offset);
        self.told = stream.tokens().len();
        Ok(Some(logprobs))
    }

    fn choice(&self, text: &str, logprobs: Option<Value>, finish: Option<&str>) -> Value {
        json!({ "index": self.index, "text": text, "logprobs": logprobs, "finish_reason": finish })
    }
}

impl Pieces for TextPieces {
    fn error(error: &ApiError) -> Value {
        error.clone().renamed(&NAMES).json()
    }

    fn begin(&mut self, _: &ServedModel, _: &Answer) -> Vec<Value> {
        if self.echo.is_none() {
            return Vec::new();
        }
        let (prompt, logprobs) = self.take_echo();
        let logprobs = logprobs.map(|logprobs| json!(logprobs));
        vec![self.header.message(&[self.choice(&prompt, logprobs, None)], None)]
    }

    fn parts(
        &mut self,
        app: &ServedModel,
        answer: &Answer,
        parts: Vec<ToolPart>,
    ) -> Result<Vec<Value>, ApiError> {
        let text = text_of(parts);
        let logprobs = self.logprobs(app, answer)?.filter(|logprobs| !logprobs.is_empty());
        if text.is_empty() && logprobs.is_none() {
            return Ok(Vec::new());
        }
        let logprobs = logprobs.map(|logprobs| json!(logprobs));
        Ok(vec![self.header.message(&[self.choice(&text, logprobs, None)], None)])
    }

    fn end(&mut self, _: &ServedModel, answer: &Answer) -> Vec<Value> {
        let choice = self.choice("", None, Some(answer.end_reason()));
        vec![self.header.message(&[choice], None)]
    }
}
