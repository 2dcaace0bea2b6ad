//! Errors, in the format of each API.

use mlxcel_server::Server;
use serde_json::Value;

use crate::harness::{ask, requests, streamed};
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
