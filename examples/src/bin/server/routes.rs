//! Who answers what.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::Bytes;
use axum::extract::rejection::JsonRejection;
use axum::extract::{ConnectInfo, DefaultBodyLimit, FromRequest, Request, State};
use axum::http::{HeaderName, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use mlxcel_session::{Error, ErrorKind, Share};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;

use crate::app::App;
use crate::connections::Peer;
use crate::failure::ApiError;
use crate::origins::{self, Allowed};
use crate::{chat, completions, connections, embeddings, metrics, openapi, page, responses};

/// The header that names a request.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// How long a client has to send a request's body.
const BODY_TIME: std::time::Duration = std::time::Duration::from_secs(30);

pub(crate) fn router(app: Arc<App>, allowed: Allowed) -> Router {
    let api = Router::new()
        .route("/v1/chat/completions", post(chat::answer))
        .route("/v1/completions", post(completions::complete))
        .route("/v1/responses", post(responses::respond))
        .route("/v1/embeddings", post(embeddings::embed))
        .route("/v1/models", get(models))
        .route("/v1/models/{name}", get(model))
        .route("/metrics", get(metrics::show))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&app), authorize));
    Router::new()
        .merge(api)
        .route("/health", get(health))
        .route("/openapi.json", get(openapi::show))
        .route("/", get(page::html))
        .route("/chat.js", get(page::script))
        .fallback(nothing)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(app.most_bytes))
        .layer(middleware::from_fn_with_state(Arc::new(allowed), origins::guard))
        .layer(middleware::from_fn_with_state(Arc::clone(&app), metrics::count))
        .layer(middleware::from_fn_with_state(Arc::clone(&app), identify))
        .layer(middleware::from_fn(connections::watch))
        .with_state(app)
}

/// How many bytes of bodies are parsed at the same time, or one body where that is longer: parsed, JSON can take a hundred times
/// as much, and
/// many clients may send such.
pub(crate) const PARSED_AT_ONCE: usize = 8 << 20;

/// What is asked of a path.
pub(crate) trait Asked: DeserializeOwned + Send + 'static {
    /// The field that cannot be left out.
    const REQUIRED: &'static str;

    /// The fields that it has. Others are refused: they may be meant to constrain the answer.
    fn fields() -> Vec<&'static str>;

    /// Which model is asked, if one is named.
    fn model(&self) -> Option<&str>;
}

/// Fields that change no answer, and are not looked at.
const WITHOUT_EFFECT: [&str; 10] = [
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prediction",
    "background",
    "truncation",
];

/// The JSON body of a request, and who sent it. Pages of other sites cannot send one without being asked, since it has to
/// be called JSON.
pub(crate) struct Body<T>(pub(crate) T, pub(crate) Sender);

/// Who sent a body.
pub(crate) struct Sender {
    /// Whom the request counts for.
    pub(crate) share: Share,
    /// The room that the body takes until this is dropped.
    _room: OwnedSemaphorePermit,
}

impl<T: Asked> FromRequest<Arc<App>> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        if !is_json(&request) {
            let message = "the Content-Type must be application/json";
            return Err(ApiError::with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
        let client = request.extensions().get::<ConnectInfo<Peer>>().map_or(0, |peer| peer.0.client());
        let group = request.extensions().get::<RequestNumber>().map_or(0, |number| number.0);
        let Ok(body) = tokio::time::timeout(BODY_TIME, Bytes::from_request(request, app)).await else {
            return Err(ApiError::with_status(
                StatusCode::REQUEST_TIMEOUT,
                "the body did not arrive in time",
            ));
        };
        let body =
            body.map_err(|rejection| ApiError::with_status(rejection.status(), rejection.body_text()))?;
        let bytes = body.len().clamp(1, PARSED_AT_ONCE) as u32;
        let room = Arc::clone(&app.parsing).acquire_many_owned(bytes).await;
        let room = room.map_err(|error| {
            Error::new(ErrorKind::Internal, "read request", "the server is shutting down").with_source(error)
        })?;
        let name = app.name.clone();
        let asked = app.workers.run(client, move || read::<T>(&body, &name)).await??;
        Ok(Self(asked, Sender { share: Share { client, group }, _room: room }))
    }
}

/// Reads what is asked of the model `name`.
fn read<T: Asked>(body: &[u8], name: &str) -> Result<T, ApiError> {
    // What is no object is refused below, in the words of what is wanted.
    let fields: BTreeMap<String, Option<IgnoredAny>> = serde_json::from_slice(body).unwrap_or_default();
    let given = fields.iter().filter_map(|(field, value)| value.map(|_| field.as_str()));
    let known = T::fields();
    let mut unknown = given.filter(|field| !WITHOUT_EFFECT.contains(field) && !known.contains(field));
    if let Some(field) = unknown.next() {
        return Err(ApiError::unsupported(field, &format!("the field {field:?}")));
    }
    // What is not as it should be in JSON is the client's mistake like any other.
    let wrong = |rejection: JsonRejection| ApiError::invalid("", rejection.body_text());
    let Json(asked) = Json::<T>::from_bytes(body).map_err(wrong)?;
    match asked.model().filter(|asked| *asked != name) {
        Some(other) => Err(ApiError::no_model(other)),
        None => Ok(asked),
    }
}

/// The number of a request, by which its answers are a group.
#[derive(Clone, Copy)]
struct RequestNumber(u64);

/// Names the request, or repeats the name that the client gave it, in the answer's `X-Request-Id`.
async fn identify(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let number = app.requests.fetch_add(1, Ordering::Relaxed);
    request.extensions_mut().insert(RequestNumber(number));
    let given =
        request.headers().get(REQUEST_ID).filter(|id| id.len() <= 128 && id.to_str().is_ok()).cloned();
    let mut response = next.run(request).await;
    let id = given.or_else(|| format!("req-{:x}-{number}", app.started).parse().ok());
    response.headers_mut().extend(id.map(|id| (REQUEST_ID, id)));
    response
}

/// Whether the body is called JSON.
fn is_json(request: &Request) -> bool {
    let called = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence =
        called.unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || essence.starts_with("application/") && essence.ends_with("+json")
}

/// Lets those in who have the key.
async fn authorize(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let Some(key) = &app.api_key else { return next.run(request).await };
    let given = request.headers().get(header::AUTHORIZATION).map(|value| value.as_bytes());
    let given = given.and_then(|value| value.strip_prefix(b"Bearer ")).unwrap_or_default();
    if same(given, key.as_bytes()) {
        return next.run(request).await;
    }
    let mut response =
        ApiError::with_status(StatusCode::UNAUTHORIZED, "the API key is missing or wrong").into_response();
    response.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
    response
}

/// Compares in a time that does not tell how much is right.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}

fn describe(app: &App) -> Value {
    let context = app.engine.model().capabilities().context;
    json!({
        "id": app.name, "object": "model", "created": app.started, "owned_by": "mlxcel", "max_model_len": context,
    })
}

async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({ "object": "list", "data": [describe(&app)] }))
}

async fn model(
    State(app): State<Arc<App>>,
    axum::extract::Path(name): axum::extract::Path<String>,
) -> Result<Json<Value>, ApiError> {
    if name == app.name {
        return Ok(Json(describe(&app)));
    }
    Err(ApiError::no_model(&name))
}

async fn health(State(app): State<Arc<App>>) -> Response {
    match app.engine.check() {
        Ok(()) => Json(json!({ "status": "ok" })).into_response(),
        Err(error) => {
            let body = Json(json!({ "status": "failed", "message": mlxcel_examples::one_line(&error) }));
            (StatusCode::SERVICE_UNAVAILABLE, body).into_response()
        }
    }
}

async fn nothing() -> ApiError {
    ApiError::with_status(StatusCode::NOT_FOUND, "this path does not exist")
}

async fn wrong_method() -> ApiError {
    ApiError::with_status(StatusCode::METHOD_NOT_ALLOWED, "this path does not support the method")
}
