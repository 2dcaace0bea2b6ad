//! `/v1/embeddings`.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mlxcel_session::{CancelToken, EmbedOptions, Engine, FinishReason, TokenId};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::body::{Asked, Body};
use crate::failure::ApiError;
use crate::kinds::{Field, Kind};
use crate::prompts::{PROMPTS, Prompts};
use crate::spans::{EMBEDDINGS, RequestSpan};
use crate::work::{CancelledOnDrop, TEXTS_AT_ONCE};

#[derive(Deserialize)]
pub(crate) struct EmbeddingRequest {
    input: Prompts,
    encoding_format: Option<Format>,
    dimensions: Option<usize>,
}

impl Asked for EmbeddingRequest {
    fn fields() -> Vec<Field> {
        vec![
            Field::required("input", PROMPTS),
            Field::new("encoding_format", Kind::Words(&["float", "base64"])),
            Field::new("dimensions", Kind::Count),
        ]
    }
}

/// Texts, or their tokens.
enum Texts {
    Words(Vec<String>),
    Tokens(Vec<Vec<TokenId>>),
}

impl Prompts {
    /// The texts to embed, some at a time.
    fn parts(self) -> Vec<Texts> {
        fn cut<T>(texts: Vec<T>, of: impl Fn(Vec<T>) -> Texts) -> Vec<Texts> {
            let mut texts = texts.into_iter().peekable();
            let mut parts = Vec::new();
            while texts.peek().is_some() {
                parts.push(of(texts.by_ref().take(TEXTS_AT_ONCE).collect()));
            }
            parts
        }
        match self {
            Self::Text(text) => cut(vec![text], Texts::Words),
            Self::Texts(texts) => cut(texts, Texts::Words),
            Self::Tokens(tokens) => cut(vec![tokens], Texts::Tokens),
            Self::ManyTokens(texts) => cut(texts, Texts::Tokens),
        }
    }

    fn is_allowed(&self, most: usize) -> bool {
        match self {
            Self::Text(text) => !text.is_empty(),
            Self::Texts(texts) => (1..=most).contains(&texts.len()) && !texts.iter().any(String::is_empty),
            Self::Tokens(tokens) => !tokens.is_empty(),
            Self::ManyTokens(texts) => (1..=most).contains(&texts.len()) && !texts.iter().any(Vec::is_empty),
        }
    }
}

impl Texts {
    /// Their embeddings, and how many tokens they have.
    fn embed(
        &self,
        engine: &Engine,
        options: &EmbedOptions,
    ) -> mlxcel_session::Result<(usize, Vec<Vec<f32>>)> {
        match self {
            Self::Words(texts) => {
                // First, since it refuses texts that are longer than the context before they are encoded.
                let vectors = engine.embed_all(texts, options)?;
                let tokens =
                    texts.iter().map(|text| Ok(engine.model().tokenizer()?.encode(text, true)?.len()));
                Ok((tokens.sum::<mlxcel_session::Result<usize>>()?, vectors))
            }
            Self::Tokens(texts) => {
                Ok((texts.iter().map(Vec::len).sum(), engine.embed_tokens(texts, options)?))
            }
        }
    }
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Format {
    #[default]
    Float,
    Base64,
}

impl Format {
    fn vector(self, vector: &[f32]) -> Value {
        match self {
            Self::Float => json!(vector),
            Self::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
                STANDARD.encode(bytes).into()
            }
        }
    }
}

pub(crate) async fn embed(
    Body { request, app, sender }: Body<EmbeddingRequest>,
) -> Result<Json<Value>, ApiError> {
    app.expect_no_adapter("embeddings")?;
    let texts = app.limits().texts;
    if !request.input.is_allowed(texts) {
        return Err(ApiError::invalid("input", format!("from 1 to {texts} texts, none of them empty")));
    }
    let share = sender.share;
    // Texts take no more than the body did.
    drop(sender);
    let left = CancelledOnDrop(CancelToken::new());
    let mut options = EmbedOptions::default().with_cancel(left.0.clone());
    options.dimensions = request.dimensions;
    let span = Arc::new(RequestSpan::new(EMBEDDINGS, &app.name, 1));
    let started = Instant::now();
    let (mut tokens, mut vectors) = (0, Vec::new());
    for part in request.input.parts() {
        if started.elapsed() > app.limits().time {
            return Err(ApiError::cut(FinishReason::TimeLimit));
        }
        let (engine, options, within) = (app.engine.clone(), options.clone(), Arc::clone(&span));
        let embed = move || within.in_scope(|| part.embed(&engine, &options));
        // After each part it is another client's turn.
        let embedded = app.server.embedding.run(share.client, embed).await?;
        let embedded = embedded.inspect_err(|error| span.failed(error))?;
        tokens += embedded.0;
        span.computed(embedded.0);
        vectors.extend(embedded.1);
    }
    let format = request.encoding_format.unwrap_or_default();
    let data = vectors.iter().enumerate().map(|(index, vector)| {
        json!({ "object": "embedding", "index": index, "embedding": format.vector(vector) })
    });
    Ok(Json(json!({
        "object": "list",
        "data": data.collect::<Vec<_>>(),
        "model": app.name,
        "usage": { "prompt_tokens": tokens, "total_tokens": tokens },
    })))
}
