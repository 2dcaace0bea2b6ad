//! Ids of responses and tool calls.

use std::collections::BTreeSet;

use mlxcel_server::Server;
use serde_json::{Value, json};

use crate::harness::answer;
use crate::scripted::{MISTRAL, Scripted};

const CALL: &str = "[TOOL_CALLS][{\"name\": \"now\", \"arguments\": {}}]";

/// A question that is answered with a call, and maybe what follows it.
fn body(model: &str, more: &[Value]) -> Value {
    let messages = [&[json!({ "role": "user", "content": "Is it late?" })], more].concat();
    let schema = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    let tool = json!({ "type": "function", "function": { "name": "now", "parameters": schema } });
    json!({ "model": model, "messages": messages, "tools": [tool], "max_tokens": 100 })
}

#[tokio::test]
async fn ids_differ_among_requests_models_and_servers() {
    let mut ids = BTreeSet::new();
    for _ in 0..2 {
        let engine = || Scripted::new(MISTRAL, CALL).engine();
        let router = Server::new("a", engine()).with_model("b", engine()).router().unwrap();
        for model in ["a", "a", "b"] {
            let answer = answer(&router, "/v1/chat/completions", Some(body(model, &[]))).await;
            let call = &answer["choices"][0]["message"]["tool_calls"][0]["id"];
            for id in [&answer["id"], call] {
                assert!(ids.insert(id.as_str().unwrap().to_owned()), "{id} is not the first");
            }
        }
    }
}

#[tokio::test]
async fn the_template_of_mistral_accepts_the_ids_of_calls() {
    let router = Server::new("pip", Scripted::new(MISTRAL, CALL).engine()).router().unwrap();
    let path = "/v1/chat/completions";
    let called = answer(&router, path, Some(body("pip", &[]))).await;
    let message = &called["choices"][0]["message"];
    let id = &message["tool_calls"][0]["id"];
    let is_valid = |id: &str| id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    assert!(id.as_str().is_some_and(is_valid), "{message}");
    let result = json!({ "role": "tool", "tool_call_id": id, "content": "no" });
    answer(&router, path, Some(body("pip", &[message.clone(), result]))).await;
}
