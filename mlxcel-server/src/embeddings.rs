//! `/v1/embeddings`.

use axum::Json;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mlxcel_session::{EmbedOptions, Engine};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::body::{Asked, Body};
use crate::failure::ApiError;
use crate::kinds::{Field, Kind};
use crate::prompts::{OwnedPrompt, PROMPTS, Prompts};
use crate::spans::{EMBEDDINGS, RequestSpan};

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

/// The embeddings of texts, which are all words or all tokens, and how many tokens they have.
fn embed_part(
    engine: &Engine,
    texts: &[OwnedPrompt],
    options: &EmbedOptions,
) -> mlxcel_session::Result<(usize, Vec<Vec<f32>>)> {
    let (mut words, mut tokens) = (Vec::new(), Vec::new());
    for text in texts {
        match text {
            OwnedPrompt::Text(text) => words.push(text),
            OwnedPrompt::Tokens(text) => tokens.push(text.clone()),
        }
    }
    // First, since it refuses texts that are longer than the context before they are encoded.
    let vectors = match words[..] {
        [] => engine.embed_tokens(&tokens, options)?,
        _ => engine.embed_all(&words, options)?,
    };
    let mut count = tokens.iter().map(Vec::len).sum();
    for text in words {
        count += engine.model().tokenizer()?.encode(text, true)?.len();
    }
    Ok((count, vectors))
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
    let texts = request.input.into_list(&app, "input", app.limits().texts)?;
    let share = sender.share;
    // Texts take no more than the body did.
    drop(sender);
    let span = RequestSpan::new(EMBEDDINGS, &app.name, 1);
    let (engine, dimensions) = (app.engine.clone(), request.dimensions);
    let embed = move |part: &[OwnedPrompt], cancel| {
        let mut options = EmbedOptions::default().with_cancel(cancel);
        options.dimensions = dimensions;
        let embedded = span.in_scope(|| embed_part(&engine, part, &options));
        let embedded = embedded.inspect_err(|error| span.failed(error))?;
        span.computed(embedded.0);
        Ok(embedded)
    };
    let parts = app.in_turns(share.client, &texts, embed).await?;
    let tokens: usize = parts.iter().map(|(tokens, _)| tokens).sum();
    let vectors = parts.iter().flat_map(|(_, vectors)| vectors);
    let format = request.encoding_format.unwrap_or_default();
    let data = vectors.enumerate().map(|(index, vector)| {
        json!({ "object": "embedding", "index": index, "embedding": format.vector(vector) })
    });
    Ok(Json(json!({
        "object": "list",
        "data": data.collect::<Vec<_>>(),
        "model": app.name,
        "usage": { "prompt_tokens": tokens, "total_tokens": tokens },
    })))
}
