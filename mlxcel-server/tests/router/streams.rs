//! Answers that come piece by piece.

use std::time::Duration;

use mlxcel_server::{Limits, Server};
use serde_json::{Value, json};

use crate::harness::{answer, ask, begin, engine, engine_of, events, requests, streamed, text};

#[tokio::test]
async fn an_error_before_the_first_token_of_a_stream_has_its_own_status() {
    let mut limits = Limits::default();
    limits.time = Duration::ZERO;
    let router = Server::new("pip", engine()).with_limits(limits).router().unwrap();
    for (path, body) in requests(5) {
        let response = begin(&router, path, Some(streamed(body))).await;
        let (status, kind) = (response.status().as_u16(), response.headers()["content-type"].clone());
        assert_eq!((status, kind.to_str().unwrap()), (504, "application/json"), "{path}");
        let error: Value = serde_json::from_str(&text(response).await).unwrap();
        assert!(error["error"]["message"].as_str().unwrap().contains("time limit"), "{path}: {error}");
    }
}

#[tokio::test]
async fn a_stream_that_waits_at_shutdown_is_503_and_one_that_runs_ends_with_an_error_event() {
    let engine = engine();
    let running = Server::new("pip", engine.clone()).start().unwrap();
    let router = running.router();
    let [(path, body), ..] = requests(900);
    let response = begin(&router, path, Some(streamed(body.clone()))).await;
    assert_eq!(response.status().as_u16(), 200);
    let first = tokio::spawn(text(response));
    let second = tokio::spawn(async move { ask(&router, path, Some(streamed(body))).await });
    while engine.stats().queued == 0 {
        assert!(!second.is_finished(), "it did not wait");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    running.shutdown(Duration::ZERO).await;
    let (status, error) = second.await.unwrap();
    assert!(status == 503 && error.contains("shutting_down"), "{status} {error}");
    let events = first.await.unwrap();
    assert!(events.starts_with("data: {") && events.contains("shutting_down"), "{events}");
    running.finish();
}

#[tokio::test]
async fn streams_begin_with_the_first_token_and_join_to_the_whole_answer() {
    let router = Server::new("pip", engine()).router().unwrap();
    for (path, mut body) in requests(12) {
        body["temperature"] = 0.into();
        let whole = answer(&router, path, Some(body.clone())).await;
        let (status, stream) = ask(&router, path, Some(streamed(body))).await;
        assert_eq!(status, 200, "{path}: {stream}");
        let joined: String = events(&stream).iter().filter_map(delta).collect();
        assert_eq!(Some(joined.as_str()), whole_text(&whole), "{path}");
    }
}

#[tokio::test]
async fn whole_answers_are_generated_together() {
    const TOKENS: usize = 300;
    for (path, mut body) in requests(TOKENS).into_iter().take(2) {
        let engine = engine_of(4);
        let router = Server::new("pip", engine.clone()).router().unwrap();
        body["n"] = 4.into();
        let whole = answer(&router, path, Some(body.clone())).await;
        assert_eq!(whole["usage"]["completion_tokens"], json!(4 * TOKENS), "{path}");
        let steps = engine.stats().steps as usize;
        assert!(steps < TOKENS + TOKENS / 4, "{path}: {steps} steps");
    }
}

#[tokio::test]
async fn the_name_of_an_event_comes_before_its_data() {
    let router = Server::new("pip", engine()).router().unwrap();
    for (path, body) in requests(3).into_iter().skip(2) {
        let (_, events) = ask(&router, path, Some(streamed(body))).await;
        for event in events.trim_end().split("\n\n") {
            let (name, data) = event.split_once('\n').unwrap();
            let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
            assert_eq!(name.strip_prefix("event: "), data["type"].as_str(), "{path}");
        }
    }
}

#[tokio::test]
async fn the_last_item_of_a_response_that_is_cut_is_incomplete() {
    let router = Server::new("pip", engine()).router().unwrap();
    let (path, body) = requests(3)[3].clone();
    let whole = answer(&router, path, Some(body)).await;
    assert_eq!(whole["status"], "incomplete");
    assert_eq!(whole["output"][0]["status"], "incomplete");
    // The official client's type of the usage has both.
    let details = json!({ "cached_tokens": 0, "cache_write_tokens": 0 });
    assert_eq!(whole["usage"]["input_tokens_details"], details);
}

/// The text that an event of any path adds.
fn delta(event: &Value) -> Option<&str> {
    let choice = &event["choices"][0];
    let delta = &event["delta"];
    let texts = [&choice["text"], &choice["delta"]["content"], delta, &delta["text"]];
    texts.into_iter().find_map(Value::as_str)
}

fn whole_text(answer: &Value) -> Option<&str> {
    let choice = &answer["choices"][0];
    let block = &answer["content"][0];
    let item = &answer["output"][0]["content"][0];
    let texts = [&choice["text"], &choice["message"]["content"], &block["text"], &item["text"]];
    texts.into_iter().find_map(Value::as_str)
}
