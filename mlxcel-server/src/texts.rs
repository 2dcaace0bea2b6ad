//! `/tokenize`, `/detokenize` and `/tokenizer_info`: texts as the model's tokens, and back.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use mlxcel_session::TokenId;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::body::{Asked, Body};
use crate::failure::ApiError;
use crate::kinds::{Field, Kind};
use crate::served::{Models, ServedModel};

#[derive(Deserialize)]
pub(crate) struct TokenizeRequest {
    prompt: String,
    /// Whether the tokens that begin and end texts are added; by default they are.
    add_special_tokens: Option<bool>,
}

impl Asked for TokenizeRequest {
    fn fields() -> Vec<Field> {
        vec![Field::required("prompt", Kind::Text), Field::new("add_special_tokens", Kind::Flag)]
    }
}

#[derive(Deserialize)]
pub(crate) struct DetokenizeRequest {
    tokens: Vec<TokenId>,
}

impl Asked for DetokenizeRequest {
    fn fields() -> Vec<Field> {
        vec![Field::required("tokens", Kind::List(&Kind::Token))]
    }
}

/// The tokens of a text, their number, and how many the model takes.
pub(crate) async fn tokenize(
    Body { request, app, sender }: Body<TokenizeRequest>,
) -> Result<Json<Value>, ApiError> {
    let most = app.engine.model().capabilities().context;
    let of = Arc::clone(&app);
    let encode = move || {
        let special = request.add_special_tokens.unwrap_or(true);
        Ok::<_, ApiError>(of.tokenizer()?.encode(&request.prompt, special)?)
    };
    let tokens = app.server.workers.run(sender.share.client, encode).await??;
    Ok(Json(json!({ "count": tokens.len(), "max_model_len": most, "tokens": tokens })))
}

/// The text of tokens.
pub(crate) async fn detokenize(
    Body { request, app, sender }: Body<DetokenizeRequest>,
) -> Result<Json<Value>, ApiError> {
    let of = Arc::clone(&app);
    let decode = move || {
        check_tokens(&of, &request.tokens, "tokens")?;
        Ok::<_, ApiError>(of.tokenizer()?.decode(&request.tokens, false)?)
    };
    let text = app.server.workers.run(sender.share.client, decode).await??;
    Ok(Json(json!({ "prompt": text })))
}

/// Rejects ids outside the vocabulary in the field `param`: decoding would omit them. A model may have more
/// ids than its tokenizer has tokens; it can generate those.
pub(crate) fn check_tokens(app: &ServedModel, tokens: &[TokenId], param: &str) -> Result<(), ApiError> {
    let (tokenizer, size) = (app.tokenizer()?, app.engine.model().info().vocabulary_size);
    let is_known = |id: TokenId| (id as usize) < size || tokenizer.token(id).is_some();
    match tokens.iter().find(|&&id| !is_known(id)) {
        None => Ok(()),
        Some(id) => {
            let message = format!("the token id {id} is outside the vocabulary of {size} tokens");
            Err(ApiError::invalid(param, message))
        }
    }
}

/// The special tokens of the first model, and how many tokens it takes. Clients such as lm-eval ask for it
/// before they encode prompts by this server.
pub(crate) async fn describe(State(models): State<Arc<Models>>) -> Result<Json<Value>, ApiError> {
    let app = models.find(None)?;
    let tokenizer = app.tokenizer()?;
    let token = |role| tokenizer.special_token_id(role).and_then(|id| tokenizer.token(id));
    let stop = || app.engine.model().stop_tokens().first().and_then(|&id| tokenizer.token(id));
    Ok(Json(json!({
        "bos_token": token("bos_token"), "eos_token": token("eos_token").or_else(stop), "pad_token": token("pad_token"),
        "unk_token": token("unk_token"), "vocab_size": tokenizer.vocabulary_size(),
        "model_max_length": app.engine.model().capabilities().context,
    })))
}
