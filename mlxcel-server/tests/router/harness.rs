//! An engine to serve, and how its router is asked.

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use axum::response::Response;
use mlxcel_session::{Engine, EngineOptions, Model};
use serde_json::{Value, json};
use tower::ServiceExt;

/// An engine that runs one request at a time.
pub(crate) fn engine() -> Engine {
    engine_of(1)
}

/// An engine that runs so many requests at a time.
pub(crate) fn engine_of(sequences: usize) -> Engine {
    let storyteller = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/models/storyteller");
    let options = EngineOptions::default().with_sequences(sequences);
    Engine::with_options(Model::open(storyteller).unwrap(), &options).unwrap()
}

/// The paths that generate, each with a request for a text of `tokens` tokens.
pub(crate) fn requests(tokens: usize) -> [(&'static str, Value); 4] {
    let messages = json!([{ "role": "user", "content": "Who is Pip?" }]);
    [
        ("/v1/completions", json!({ "prompt": "Once", "max_tokens": tokens, "ignore_eos": true })),
        ("/v1/chat/completions", json!({ "messages": messages, "max_tokens": tokens, "ignore_eos": true })),
        ("/v1/messages", json!({ "messages": messages, "max_tokens": tokens })),
        ("/v1/responses", json!({ "input": "Who is Pip?", "max_output_tokens": tokens })),
    ]
}

pub(crate) fn streamed(mut body: Value) -> Value {
    body["stream"] = true.into();
    body
}

/// The answer to a GET, or to a POST of `body`, once it begins.
pub(crate) async fn begin(router: &Router, path: &str, body: Option<Value>) -> Response {
    let request = Request::builder().uri(path);
    let request = match body {
        None => request.body(Body::empty()),
        Some(body) => {
            let request = request.method("POST").header("content-type", "application/json");
            request.body(Body::from(body.to_string()))
        }
    };
    router.clone().oneshot(request.unwrap()).await.unwrap()
}

/// The text of an answer's body.
pub(crate) async fn text(response: Response) -> String {
    String::from_utf8(to_bytes(response.into_body(), 1 << 20).await.unwrap().to_vec()).unwrap()
}

/// The objects of a stream's events.
pub(crate) fn events(stream: &str) -> Vec<Value> {
    stream.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect()
}

/// The status and the body of an answer.
pub(crate) async fn ask(router: &Router, path: &str, body: Option<Value>) -> (u16, String) {
    let response = begin(router, path, body).await;
    (response.status().as_u16(), text(response).await)
}

/// The object of an answer with status 200.
pub(crate) async fn answer(router: &Router, path: &str, body: Option<Value>) -> Value {
    let (status, text) = ask(router, path, body).await;
    assert_eq!(status, 200, "{path}: {text}");
    serde_json::from_str(&text).unwrap()
}

/// The status and the error of an answer; null if it has none.
pub(crate) async fn error(router: &Router, path: &str, body: Value) -> (u16, Value) {
    let (status, text) = ask(router, path, Some(body)).await;
    (status, serde_json::from_str::<Value>(&text).unwrap_or_default()["error"].clone())
}
