//! `/v1/completions`.

use axum::Json;
use axum::response::{IntoResponse, Response};
use mlxcel_session::{Prompt, Request, RequestStream, TokenId};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::body::{Asked, Body};
use crate::echo::{self, Echo};
use crate::failure::ApiError;
use crate::fields::{ApiUsage, Fields, finish_reason};
use crate::header::Header;
use crate::logprobs::{self, TextLogprobs};
use crate::served::ServedModel;
use crate::sse::{self, Pieces, whole_text};

#[derive(Deserialize)]
pub(crate) struct CompletionRequest {
    prompt: Prompts,
    logprobs: Option<u16>,
    /// Whether answers begin with their prompts.
    echo: Option<bool>,
    #[serde(flatten)]
    fields: Fields,
}

impl Asked for CompletionRequest {
    const REQUIRED: &'static str = "prompt";

    fn fields() -> Vec<&'static str> {
        ["prompt", "logprobs", "suffix", "echo", "best_of"].into_iter().chain(Fields::names()).collect()
    }

    fn model(&self) -> Option<&str> {
        self.fields.model.as_deref()
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Prompts {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<TokenId>),
    ManyTokens(Vec<Vec<TokenId>>),
}

#[derive(Clone)]
pub(crate) enum OwnedPrompt {
    Text(String),
    Tokens(Vec<TokenId>),
}

impl OwnedPrompt {
    fn as_prompt(&self) -> Prompt<'_> {
        match self {
            Self::Text(text) => text.into(),
            Self::Tokens(tokens) => tokens.into(),
        }
    }
}

impl Prompts {
    fn into_list(self) -> Vec<OwnedPrompt> {
        match self {
            Self::Text(text) => vec![OwnedPrompt::Text(text)],
            Self::Tokens(tokens) => vec![OwnedPrompt::Tokens(tokens)],
            Self::Texts(texts) => texts.into_iter().map(OwnedPrompt::Text).collect(),
            Self::ManyTokens(prompts) => prompts.into_iter().map(OwnedPrompt::Tokens).collect(),
        }
    }
}

pub(crate) async fn complete(
    Body { request, app, sender }: Body<CompletionRequest>,
) -> Result<Response, ApiError> {
    let (fields, with_logprobs) = (request.fields, request.logprobs.is_some());
    let top = request.logprobs.unwrap_or(0);
    let limits = app.limits();
    if top > limits.logprobs {
        return Err(ApiError::invalid("logprobs", format!("logprobs is at most {}", limits.logprobs)));
    }
    let mut prompts = request.prompt.into_list();
    if prompts.is_empty() || prompts.len() > limits.prompts {
        return Err(ApiError::invalid("prompt", format!("from 1 to {} prompts", limits.prompts)));
    }
    let options = fields.options(&app, top)?;
    let answers_of_each = options.len();
    if prompts.len() * answers_of_each > limits.rows {
        return Err(ApiError::invalid("n", format!("prompts times n are at most {}", limits.rows)));
    }
    let (is_stream, include_usage) = (fields.stream.unwrap_or(false), fields.include_usage());
    let mut echoes = Vec::new();
    if request.echo == Some(true) {
        if is_stream {
            return Err(ApiError::unsupported("echo", "a stream that begins with the prompt"));
        }
        echoes = echo::echoes(&app, sender.share, &prompts, request.logprobs).await?;
        // What is continued are the very tokens that are repeated.
        prompts = echoes.iter().map(|echo| OwnedPrompt::Tokens(echo.tokens.clone())).collect();
        if fields.wants_none() {
            return Ok(Json(repeat(&app, echoes, answers_of_each)).into_response());
        }
    }
    let streams = app
        .submit(sender.share, move |submit| {
            prompts.iter().try_for_each(|prompt| {
                options.iter().try_for_each(|options| {
                    submit(Request::new(prompt.as_prompt()).with_options(options.clone()))
                })
            })
        })
        .await?;
    drop((fields, sender));
    let number = streams.first().map_or(0, |stream| stream.number());
    let header = Header::new(&app, "cmpl", number, "text_completion");
    if is_stream {
        let pieces = |index| TextPieces { header: header.clone(), index, with_logprobs, told: 0, offset: 0 };
        let answers =
            streams.into_iter().enumerate().map(|(index, stream)| (stream, pieces(index))).collect();
        let last = header.clone();
        let usage = include_usage.then_some(move |usage| last.message(&[], Some(usage)));
        return Ok(sse::respond(app, answers, usage));
    }
    let (mut choices, mut usages) = (Vec::new(), Vec::new());
    for (index, mut stream) in streams.into_iter().enumerate() {
        let text = whole_text(&mut stream).await?;
        let mut pieces = TextPieces { header: header.clone(), index, with_logprobs, told: 0, offset: 0 };
        let echo = echoes.get(index / answers_of_each.max(1));
        let own = echo.and_then(|echo| echo.logprobs.clone());
        pieces.offset = own.as_ref().map_or(0, TextLogprobs::end);
        let logprobs = pieces.logprobs(&app, &stream)?.map(|logprobs| match own {
            Some(own) => own.followed_by(logprobs),
            None => logprobs,
        });
        let text = format!("{}{text}", echo.map_or("", |echo| echo.text.as_str()));
        let logprobs = logprobs.map(|logprobs| json!(logprobs));
        choices.push(pieces.choice(&text, logprobs, Some(finish_reason(stream.finish_reason()))));
        usages.push(stream.usage());
    }
    let usage = usages.chunks(answers_of_each.max(1)).map(ApiUsage::of).reduce(ApiUsage::plus);
    Ok(Json(header.message(&choices, usage)).into_response())
}

/// The prompts alone.
fn repeat(app: &ServedModel, echoes: Vec<Echo>, answers_of_each: usize) -> Value {
    let header = Header::new(app, "cmpl", 0, "text_completion");
    let tokens = echoes.iter().map(|echo| echo.tokens.len()).sum();
    let each = echoes.iter().flat_map(|echo| std::iter::repeat_n(echo, answers_of_each));
    let choices = each.enumerate().map(|(index, Echo { text, logprobs, .. })| {
        json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": "length" })
    });
    header.message(&choices.collect::<Vec<_>>(), Some(ApiUsage::of_prompts(tokens)))
}

struct TextPieces {
    header: Header,
    index: usize,
    with_logprobs: bool,
    /// How many tokens were told with their log probabilities, and where in the text the next one begins.
    told: usize,
    offset: usize,
}

impl TextPieces {
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
    fn begin(&mut self, _: &ServedModel) -> Vec<Value> {
        Vec::new()
    }

    fn piece(
        &mut self,
        app: &ServedModel,
        stream: &RequestStream,
        text: &str,
    ) -> Result<Vec<Value>, ApiError> {
        let logprobs = self.logprobs(app, stream)?.map(|logprobs| json!(logprobs));
        Ok(vec![self.header.message(&[self.choice(text, logprobs, None)], None)])
    }

    fn end(&mut self, _: &ServedModel, stream: &RequestStream) -> Vec<Value> {
        let choice = self.choice("", None, Some(finish_reason(stream.finish_reason())));
        vec![self.header.message(&[choice], None)]
    }
}
