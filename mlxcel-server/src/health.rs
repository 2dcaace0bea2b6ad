//! Whether the server lives, whether it takes requests, and what it serves.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use mlxcel_session::mlxcel_core::one_line;
use serde_json::{Value, json};

use crate::served::Models;

/// `/health/live`: the process answers. If it does not, it should be started again.
pub(crate) async fn live() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

/// `/health/ready`, and `/health`: the engines run and take requests. If not, requests should go elsewhere.
pub(crate) async fn ready(State(models): State<Arc<Models>>) -> Response {
    if models.shared.ending.load(Ordering::Relaxed) {
        return unavailable("ending", "the server is shutting down");
    }
    match models.served.iter().try_for_each(|app| app.engine.check()) {
        Ok(()) => Json(json!({ "status": "ok" })).into_response(),
        Err(error) => unavailable("failed", &one_line(&error)),
    }
}

/// The answer of a server that takes no requests: `status` says why in a word, `message` in a sentence.
pub(crate) fn unavailable(status: &str, message: &str) -> Response {
    let body = Json(json!({ "status": status, "message": message }));
    (StatusCode::SERVICE_UNAVAILABLE, body).into_response()
}

/// `/server_info`: the version, and each model with its engine.
pub(crate) async fn describe(State(models): State<Arc<Models>>) -> Json<Value> {
    let served = models.served.iter().map(|app| {
        let model = app.engine.model();
        let (info, capabilities) = (model.info(), model.capabilities());
        json!({
            "name": app.name, "backend": info.backend, "model_type": info.model_type, "precision": info.precision.as_str(),
            "max_model_len": capabilities.context, "sequences": capabilities.sequences, "max_tokens": app.answer_tokens,
            "weight_bytes": info.weight_bytes,
        })
    });
    Json(json!({
        "version": env!("CARGO_PKG_VERSION"), "started": models.shared.started, "models": served.collect::<Vec<_>>(),
    }))
}
