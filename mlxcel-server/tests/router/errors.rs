//! Errors, in the format of each API.

use axum::body::Body;
use axum::http::Request;
use mlxcel_server::{Limits, Server, Startup};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::harness::{ask, engine, error, requests, streamed, text};
use crate::scripted::{QWEN3, Scripted};

#[tokio::test]
async fn an_encoder_is_not_asked_for_text() {
    let engine = Scripted::new(QWEN3, "yes").encoder().engine();
    let router = Server::new("pip", engine).router().unwrap();
    for (path, body) in requests(3) {
        for body in [body.clone(), streamed(body)] {
            let (status, error) = error(&router, path, body).await;
            assert_eq!(status, 400, "{path}: {error}");
            assert!(error["message"].as_str().unwrap().contains("/v1/embeddings"), "{path}: {error}");
            if path != "/v1/messages" {
                assert_eq!([&error["param"], &error["code"]], ["model", "unsupported"], "{path}: {error}");
            }
        }
    }
}

#[tokio::test]
async fn a_body_over_the_limit_is_told_the_limit() {
    let mut limits = Limits::default();
    limits.body_bytes = 2345;
    let router = Server::new("pip", engine()).with_limits(limits).router().unwrap();
    let body = json!({ "prompt": "x".repeat(3000) });
    let (status, error) = error(&router, "/v1/completions", body).await;
    let message = error["message"].as_str().unwrap();
    assert!(status == 413 && message.contains("2345") && message.contains("--max-body"), "{status} {error}");
}

#[tokio::test]
async fn unknown_paths_and_wrong_methods_are_errors_in_the_format_of_the_api() {
    let router = Server::new("pip", engine()).with_api_key("secret").router().unwrap();
    for (method, path, status, is_anthropic) in [
        ("GET", "/nothing", 404, false),
        ("POST", "/v1/nothing", 404, false),
        ("GET", "/v1/messages/nothing", 404, true),
        ("GET", "/v1/messages_of_others", 404, false),
        ("GET", "/v1/completions", 405, false),
        ("DELETE", "/v1/models", 405, false),
        ("POST", "/health", 405, false),
        ("GET", "/v1/messages", 405, true),
        ("PUT", "/v1/messages/count_tokens", 405, true),
        ("POST", "/v1/messages", 401, true),
        ("POST", "/v1/completions", 401, false),
    ] {
        let request = Request::builder().method(method).uri(path).body(Body::empty());
        let response = router.clone().oneshot(request.unwrap()).await.unwrap();
        let (found, headers) = (response.status().as_u16(), response.headers().clone());
        let text = text(response).await;
        assert_eq!(found, status, "{method} {path}: {text}");
        assert_eq!(headers["content-type"], "application/json", "{method} {path}");
        let error: Value = serde_json::from_str(&text).unwrap();
        assert!(error["error"]["message"].is_string() && error["error"]["type"].is_string(), "{text}");
        assert_eq!(error["type"] == "error", is_anthropic, "{method} {path}: {text}");
        assert_eq!(headers.contains_key("allow"), status == 405, "{method} {path}");
    }
    let request = Request::builder().uri("/v1/models/%ff").header("x-api-key", "secret").body(Body::empty());
    let response = router.oneshot(request.unwrap()).await.unwrap();
    assert_eq!(response.status().as_u16(), 400);
    let text = text(response).await;
    assert!(serde_json::from_str::<Value>(&text).unwrap()["error"]["message"].is_string(), "{text}");
}

#[tokio::test]
async fn requests_while_models_load_are_errors_in_the_format_of_the_api() {
    let router = Startup::new().router();
    for (path, is_anthropic) in [("/v1/messages", true), ("/v1/completions", false)] {
        let (status, text) = ask(&router, path, Some(json!({}))).await;
        let error: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((status, error["type"] == "error"), (503, is_anthropic), "{text}");
    }
}

#[tokio::test]
async fn errors_of_the_engine_have_the_names_of_the_api() {
    let router = Server::new("pip", engine()).router().unwrap();
    for (path, mut body) in requests(3) {
        let (field, value) = match path {
            "/v1/messages" => ("stop_sequences", json!([""])),
            "/v1/responses" => ("text", json!({ "format": { "type": "regex" } })),
            _ => ("stop", json!("")),
        };
        body[field] = value;
        let (status, error) = error(&router, path, body).await;
        let message = error["message"].as_str().unwrap();
        assert!(status == 400 && message.contains(field), "{path}: {status} {error}");
        assert!(!message.contains("stop_strings") && !message.contains("response_format"), "{path}: {error}");
        if path != "/v1/messages" {
            let param = error["param"].as_str().unwrap();
            assert_eq!(param.split('.').next(), Some(field), "{path}: {error}");
        }
    }
}

#[tokio::test]
async fn errors_of_counts_have_the_names_of_the_api() {
    let router = Server::new("pip", engine()).router().unwrap();
    let format = json!({ "type": "json_schema", "schema": 5 });
    let said = json!([{ "role": "user", "content": "Hi" }]);
    let system = json!({ "system": "Be brief.", "messages": [] });
    for (path, body, named) in [
        ("/v1/messages/count_tokens", system, "at least one message"),
        (
            "/v1/messages/count_tokens",
            json!({ "messages": said, "output_config": { "format": format } }),
            "output_config.format",
        ),
        ("/v1/responses/input_tokens", json!({ "input": said, "text": { "format": format } }), "text.format"),
    ] {
        let (status, text) = ask(&router, path, Some(body)).await;
        assert!(
            status == 400 && text.contains(named) && !text.contains("response_format"),
            "{status} {text}"
        );
    }
}

#[tokio::test]
async fn a_client_that_wants_a_stored_conversation_is_told_to_send_a_whole_one() {
    let router = Server::new("pip", engine()).router().unwrap();
    let messages = json!([{ "role": "user", "content": "Hi" }]);
    let body = json!({ "messages": messages, "max_tokens": 2, "thread": { "type": "create" } });
    let (status, error) = error(&router, "/v1/messages", body).await;
    assert_eq!((status, &error["details"]["error_code"]), (400, &json!("thread_unsupported_request")));
}

#[tokio::test]
async fn a_compressed_body_is_refused_for_its_encoding() {
    let router = Server::new("pip", engine()).router().unwrap();
    for (encoding, status) in [("identity", 200), ("gzip", 415)] {
        let request = Request::post("/tokenize").header("content-type", "application/json");
        let request = request.header("content-encoding", encoding).body(Body::from(r#"{"prompt":"Hi"}"#));
        let response = router.clone().oneshot(request.unwrap()).await.unwrap();
        let (found, text) = (response.status().as_u16(), text(response).await);
        assert_eq!((found, text.contains("Content-Encoding")), (status, status == 415), "{text}");
    }
}

#[tokio::test]
async fn fields_of_another_api_are_refused_by_the_name_that_was_sent() {
    let router = Server::new("pip", engine()).router().unwrap();
    for (path, mut body) in requests(3) {
        let field = match path {
            "/v1/messages" => "stop",
            "/v1/responses" => "max_tokens",
            "/v1/completions" => "top_logprobs",
            _ => "max_output_tokens",
        };
        body[field] = 1.into();
        let (status, text) = ask(&router, path, Some(body)).await;
        assert!(status == 400 && text.contains(&format!("\\\"{field}\\\"")), "{path}: {status} {text}");
    }
}
