//! Errors, in the format of each API.

use mlxcel_server::{Limits, Server};
use serde_json::{Value, json};

use crate::harness::{ask, engine, requests, streamed};
use crate::scripted::{QWEN3, Scripted};

#[tokio::test]
async fn an_encoder_is_not_asked_for_text() {
    let engine = Scripted::new(QWEN3, "yes").encoder().engine();
    let router = Server::new("pip", engine).router().unwrap();
    for (path, body) in requests(3) {
        for body in [body.clone(), streamed(body)] {
            let (status, text) = ask(&router, path, Some(body)).await;
            let error = serde_json::from_str::<Value>(&text).unwrap()["error"].clone();
            assert_eq!(status, 400, "{path}: {text}");
            assert!(error["message"].as_str().unwrap().contains("/v1/embeddings"), "{path}: {text}");
            if path != "/v1/messages" {
                assert_eq!([&error["param"], &error["code"]], ["model", "unsupported"], "{path}: {text}");
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
    let (status, text) = ask(&router, "/v1/completions", Some(body)).await;
    let error: Value = serde_json::from_str(&text).unwrap();
    let message = error["error"]["message"].as_str().unwrap();
    assert_eq!(status, 413, "{text}");
    assert!(message.contains("2345") && message.contains("--max-body"), "{text}");
}
