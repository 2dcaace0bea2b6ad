//! Which path answers what.

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::middleware;
use axum::routing::{get, post};

use crate::failure::ApiError;
use crate::origins::{self, Origins};
use crate::served::Models;
use crate::{
    adapter_routes, api_key, chat, completions, embeddings, health, messages, metrics, model_list, openapi,
    page, request_id, rerank, responses, texts,
};

pub(crate) fn router(models: &Arc<Models>, origins: Option<&Origins>, with_page: bool) -> Router {
    let models = Arc::clone(models);
    let api = Router::new()
        .route("/v1/chat/completions", post(chat::answer))
        .route("/v1/completions", post(completions::complete))
        .route("/v1/responses", post(responses::respond))
        .route("/v1/responses/input_tokens", post(responses::count))
        .route("/v1/embeddings", post(embeddings::embed))
        .route("/v1/rerank", post(rerank::rerank))
        .route("/tokenize", post(texts::tokenize))
        .route("/detokenize", post(texts::detokenize))
        .route("/tokenizer_info", get(texts::describe))
        .route("/server_info", get(health::describe))
        .route("/v1/models", get(model_list::list))
        .route("/v1/models/{*name}", get(model_list::describe_one))
        .route("/metrics", get(metrics::show))
        .route("/v1/messages", post(messages::answer))
        .route("/v1/messages/count_tokens", post(messages::count));
    let api = adapter_routes::add(api, &models)
        .route_layer(middleware::from_fn_with_state(Arc::clone(&models), api_key::authorize));
    let mut router = Router::new()
        .merge(api)
        .route("/health", get(health::ready))
        .route("/health/ready", get(health::ready))
        .route("/health/live", get(health::live))
        .route("/openapi.json", get(openapi::show))
        .fallback(nothing)
        .method_not_allowed_fallback(wrong_method);
    if with_page {
        router = router.route("/", get(page::html)).route("/chat.js", get(page::script));
    }
    router = router.layer(DefaultBodyLimit::max(models.shared.limits.body_bytes));
    if let Some(origins) = origins {
        router = router.layer(middleware::from_fn_with_state(Arc::new(origins.clone()), origins::guard));
    }
    router
        .layer(middleware::from_fn(messages::errors))
        .layer(middleware::from_fn_with_state(Arc::clone(&models), metrics::count))
        .layer(middleware::from_fn_with_state(Arc::clone(&models), request_id::identify))
        .with_state(models)
}

async fn nothing() -> ApiError {
    ApiError::with_status(StatusCode::NOT_FOUND, "this path does not exist")
}

async fn wrong_method() -> ApiError {
    ApiError::with_status(StatusCode::METHOD_NOT_ALLOWED, "this path does not support the method")
}
