//! Which path answers what.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::http::{HeaderName, StatusCode};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

use crate::failure::ApiError;
use crate::origins::{self, Origins};
use crate::served::{Models, ServedModel};
use crate::{
    api_key, chat, completions, embeddings, health, messages, metrics, openapi, page, responses, texts,
};

/// The header that names a request.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

pub(crate) fn router(models: &Arc<Models>, origins: Option<&Origins>, with_page: bool) -> Router {
    let models = Arc::clone(models);
    let api = Router::new()
        .route("/v1/chat/completions", post(chat::answer))
        .route("/v1/completions", post(completions::complete))
        .route("/v1/responses", post(responses::respond))
        .route("/v1/embeddings", post(embeddings::embed))
        .route("/tokenize", post(texts::tokenize))
        .route("/detokenize", post(texts::detokenize))
        .route("/server_info", get(health::describe))
        .route("/v1/models", get(list))
        .route("/v1/models/{name}", get(describe_one))
        .route("/metrics", get(metrics::show))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&models), api_key::authorize));
    let messages = Router::new()
        .route("/v1/messages", post(messages::answer))
        .route("/v1/messages/count_tokens", post(messages::count))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&models), api_key::authorize))
        .route_layer(middleware::map_response(messages::errors));
    let mut router = Router::new()
        .merge(api)
        .merge(messages)
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
        .layer(middleware::from_fn_with_state(Arc::clone(&models), metrics::count))
        .layer(middleware::from_fn_with_state(Arc::clone(&models), identify))
        .with_state(models)
}

/// The number of a request, by which its answers are a group.
#[derive(Clone, Copy)]
pub(crate) struct RequestNumber(pub(crate) u64);

/// Names the request, or repeats the name that the client gave it, in the answer's `X-Request-Id`.
async fn identify(State(models): State<Arc<Models>>, mut request: Request, next: Next) -> Response {
    let shared = &models.shared;
    let number = shared.requests.fetch_add(1, Ordering::Relaxed);
    request.extensions_mut().insert(RequestNumber(number));
    let given =
        request.headers().get(REQUEST_ID).filter(|id| id.len() <= 128 && id.to_str().is_ok()).cloned();
    let mut response = next.run(request).await;
    let id = given.or_else(|| format!("req-{:x}-{number}", shared.started).parse().ok());
    response.headers_mut().extend(id.map(|id| (REQUEST_ID, id)));
    response
}

fn describe(app: &ServedModel) -> Value {
    let context = app.engine.model().capabilities().context;
    json!({
        "id": app.name, "object": "model", "created": app.server.started, "owned_by": "mlxcel", "max_model_len": context,
    })
}

async fn list(State(models): State<Arc<Models>>) -> Json<Value> {
    let served: Vec<Value> = models.served.iter().map(|app| describe(app)).collect();
    Json(json!({ "object": "list", "data": served }))
}

async fn describe_one(
    State(models): State<Arc<Models>>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    models.find(Some(&name)).map(|app| Json(describe(app)))
}

async fn nothing() -> ApiError {
    ApiError::with_status(StatusCode::NOT_FOUND, "this path does not exist")
}

async fn wrong_method() -> ApiError {
    ApiError::with_status(StatusCode::METHOD_NOT_ALLOWED, "this path does not support the method")
}
