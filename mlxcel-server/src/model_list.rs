//! `/v1/models`: the served models, as OpenAI's API describes them, or Anthropic's for its clients.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use serde_json::{Value, json};

use crate::failure::ApiError;
use crate::served::{Models, ServedModel};

/// The path that the paths of models begin with.
const PATH: &str = "/v1/models";
/// The header that clients of Anthropic's API send.
const ANTHROPIC: &str = "anthropic-version";

/// Whether a request is for models as Anthropic's API describes them.
pub(crate) fn is_anthropic(path: &str, headers: &HeaderMap) -> bool {
    path.starts_with(PATH) && headers.contains_key(ANTHROPIC)
}

pub(crate) async fn list(State(models): State<Arc<Models>>, headers: HeaderMap) -> Json<Value> {
    let is_anthropic = is_anthropic(PATH, &headers);
    let with_adapters = |app: &Arc<ServedModel>| {
        let adapted: Vec<_> = app.adapted_models().map(|adapted| describe(&adapted, is_anthropic)).collect();
        std::iter::once(describe(app, is_anthropic)).chain(adapted)
    };
    let served: Vec<Value> = models.served.iter().flat_map(with_adapters).collect();
    Json(if is_anthropic {
        let id = |model: Option<&Value>| model.map_or(Value::Null, |model| model["id"].clone());
        let (first, last) = (id(served.first()), id(served.last()));
        json!({ "data": served, "has_more": false, "first_id": first, "last_id": last })
    } else {
        json!({ "object": "list", "data": served })
    })
}

pub(crate) async fn describe_one(
    State(models): State<Arc<Models>>,
    headers: HeaderMap,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let Path(name) =
        name.map_err(|rejection| ApiError::with_status(rejection.status(), rejection.body_text()))?;
    models.find(Some(&name)).map(|app| Json(describe(&app, is_anthropic(PATH, &headers))))
}

fn describe(app: &ServedModel, is_anthropic: bool) -> Value {
    let context = app.engine.model().capabilities().context;
    if is_anthropic {
        return json!({
            "id": app.name, "type": "model", "display_name": app.name, "lifecycle": "active",
            // When it was released is not known.
            "created_at": "1970-01-01T00:00:00Z", "max_input_tokens": context, "max_tokens": app.answer_tokens,
        });
    }
    json!({
        "id": app.name, "object": "model", "created": app.server.started, "owned_by": "mlxcel", "max_model_len": context,
        "parent": app.parent(),
    })
}
