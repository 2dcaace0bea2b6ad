//! The programs of `examples/` run, and do what they are about; the engine among them is proved by the test
//! kit.
#![cfg(feature = "portable")]

#[path = "../examples/batch.rs"]
mod batch;
#[path = "../examples/conversation.rs"]
mod conversation;
#[path = "../examples/custom_backend.rs"]
mod custom_backend;
#[path = "../examples/mount.rs"]
mod mount;
#[path = "../examples/sampler.rs"]
mod sampler;
#[path = "../examples/search.rs"]
mod search;
#[path = "../examples/stablehlo.rs"]
mod stablehlo;
#[path = "../examples/stream.rs"]
mod stream;
#[path = "../examples/structured.rs"]
mod structured;
#[path = "../examples/tools.rs"]
mod tools;

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::Request;
use custom_backend::Reader;
use mlxcel_conformance::{Expectations, Subject};
use mlxcel_core::{Backend, ErrorKind, LoadOptions, ModelSource, TokenId};
use mlxcel_server::Server;
use mlxcel_session::{Engine, Model};
use serde_json::Value;
use tower::ServiceExt;

/// The engine with a text of little numbers, in which the same beginnings go on in different ways.
fn subject() -> Subject<'static> {
    let text = |factor: TokenId| (0..120).map(move |n: TokenId| n * n * factor % 37).collect();
    let source = ModelSource::BuiltIn("text".to_owned());
    let other_source = source.clone();
    Subject::new(Reader::new(text(3), 40), source)
        .with_load(LoadOptions::default().with_capacity(96))
        .with_other_model(move || Reader::new(text(5), 40).load(&other_source, &LoadOptions::default()))
}

/// It computes nothing that could fail, and has no weights.
fn expectations() -> Expectations {
    let no_device = "its device is a table in memory";
    Expectations::none()
        .skip("faults_poison", no_device)
        .skip("faults_spare_the_others", no_device)
        .skip("faults_anywhere_are_recoverable", no_device)
        .skip("broken_weights_are_refused", "it has no weights")
}

mlxcel_conformance::suite!(subject(), expectations());

#[test]
fn programs_to_copy_run_to_their_end() {
    stream::main().unwrap();
    tools::main().unwrap();
    structured::main().unwrap();
    batch::main().unwrap();
    search::main().unwrap();
    conversation::main().unwrap();
    sampler::main().unwrap();
    custom_backend::main().unwrap();
    stablehlo::main().unwrap();
}

#[tokio::test]
async fn a_mounted_router_answers_below_its_path_behind_the_application() {
    let application = mount::application().unwrap();
    let ask = |path: &str, user: &str, body: Option<Value>| {
        let request = Request::builder().uri(path).header("authorization", format!("Bearer {user}"));
        let request = match body {
            None => request.body(Body::empty()),
            Some(body) => {
                let request = request.method("POST").header("content-type", "application/json");
                request.body(Body::from(body.to_string()))
            }
        };
        let application = application.clone();
        async move {
            let response = application.oneshot(request.unwrap()).await.unwrap();
            let status = response.status().as_u16();
            let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
            (status, String::from_utf8(body.to_vec()).unwrap())
        }
    };
    assert_eq!(ask("/", "nobody", None).await, (200, "hello".to_owned()));
    assert_eq!(ask("/llm/v1/models", "nobody", None).await.0, 401);
    let chat =
        serde_json::json!({ "messages": [{ "role": "user", "content": "Who is Pip?" }], "max_tokens": 5 });
    let (status, text) = ask("/llm/v1/chat/completions", "ann", Some(chat)).await;
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (status, &answer["model"], &answer["usage"]["completion_tokens"]),
        (200, &"storyteller".into(), &5.into())
    );
    let (status, text) = ask("/llm/nothing", "bob", None).await;
    assert!(status == 404 && text.contains("invalid_request_error"), "{status} {text}");
}

#[tokio::test]
async fn a_server_that_shuts_down_lives_and_is_not_ready() {
    let storyteller = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/models/storyteller");
    let engine = Engine::new(Model::open(storyteller).unwrap()).unwrap();
    let running = Server::new("pip", engine.clone()).with_model("pop", engine).start().unwrap();
    let status = async |path: &str| {
        let request = Request::builder().uri(path).body(Body::empty()).unwrap();
        running.router().oneshot(request).await.unwrap().status().as_u16()
    };
    assert_eq!((status("/health/live").await, status("/health/ready").await), (200, 200));
    assert_eq!((status("/v1/models/pop").await, status("/v1/models/pup").await), (200, 404));
    running.shutdown(Duration::ZERO).await;
    assert_eq!((status("/health/live").await, status("/health/ready").await), (200, 503));
    running.finish();
}

#[test]
fn a_server_of_two_models_with_one_name_is_rejected() {
    let storyteller = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/models/storyteller");
    let engine = Engine::new(Model::open(storyteller).unwrap()).unwrap();
    let error = Server::new("pip", engine.clone()).with_model("pip", engine).start().unwrap_err();
    assert_eq!((error.kind(), error.context("name")), (ErrorKind::InvalidInput, Some("pip")));
}
