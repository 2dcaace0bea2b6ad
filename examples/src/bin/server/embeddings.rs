//! `/v1/embeddings`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mlxcel_session::{CancelToken, EmbedOptions, Error, ErrorKind};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::app::App;
use crate::failure::ApiError;
use crate::routes::Body;

/// The most texts of one request.
const MOST_TEXTS: usize = 256;

#[derive(Deserialize)]
pub(crate) struct EmbeddingRequest {
    input: Input,
    encoding_format: Option<Format>,
    dimensions: Option<usize>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Input {
    Text(String),
    Texts(Vec<String>),
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

/// Cancels the request of a client that disconnects, which drops the future of its response.
struct CancelledOnDrop(CancelToken);

impl Drop for CancelledOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

pub(crate) async fn embed(
    State(app): State<Arc<App>>,
    Body(request, room): Body<EmbeddingRequest>,
) -> Result<Json<Value>, ApiError> {
    if request.dimensions.is_some() {
        return Err(ApiError::unsupported("dimensions", "shorter vectors"));
    }
    let texts = match request.input {
        Input::Text(text) => vec![text],
        Input::Texts(texts) => texts,
    };
    if texts.is_empty() || texts.len() > MOST_TEXTS || texts.iter().any(String::is_empty) {
        return Err(ApiError::invalid("input", format!("from 1 to {MOST_TEXTS} texts, none of them empty")));
    }
    // Texts take no more than the body did.
    drop(room);
    // It runs in a session of its own, beside the requests of the engine; one at a time, so that it cannot take all memory.
    let turn = Arc::clone(&app.embedding).lock_owned().await;
    let model = app.engine.model().clone();
    let left = CancelledOnDrop(CancelToken::new());
    let options = EmbedOptions::default().with_cancel(left.0.clone());
    let computed = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        // First, since it refuses texts that are longer than the context before they are encoded.
        let vectors = model.embed_all(&texts, &options)?;
        let tokens = texts.iter().map(|text| Ok(model.tokenizer()?.encode(text, true)?.len()));
        Ok::<_, Error>((tokens.sum::<mlxcel_session::Result<usize>>()?, vectors))
    });
    let (tokens, vectors) = computed
        .await
        .map_err(|error| Error::new(ErrorKind::Internal, "embed text", "it panicked").with_source(error))??;
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
