//! Prompts that are repeated, and what is computed of texts.

use mlxcel_server::Server;
use serde_json::{Value, json};

use crate::harness::{answer, ask, engine, error, events, streamed};

#[tokio::test]
async fn a_stream_that_repeats_its_prompts_joins_to_the_whole_answer() {
    let router = Server::new("pip", engine()).router().unwrap();
    for tokens in [0, 4] {
        let body = json!({
            "prompt": ["Once upon a time", "O"], "echo": true, "logprobs": 2, "max_tokens": tokens, "temperature": 0,
            "n": 2, "ignore_eos": true,
        });
        let whole = answer(&router, "/v1/completions", Some(body.clone())).await;
        let mut body = streamed(body);
        body["stream_options"] = json!({ "include_usage": true });
        let (status, text) = ask(&router, "/v1/completions", Some(body)).await;
        assert_eq!(status, 200, "{text}");
        assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
        let events = events(&text);
        assert_eq!(events.last().unwrap()["usage"], whole["usage"]);
        for choice in whole["choices"].as_array().unwrap() {
            let own = events.iter().map(|event| &event["choices"][0]);
            let own: Vec<_> = own.filter(|own| own["index"] == choice["index"]).collect();
            let joined: String = own.iter().filter_map(|own| own["text"].as_str()).collect();
            assert_eq!(choice["text"], joined, "{tokens}");
            assert_eq!(own.last().unwrap()["finish_reason"], choice["finish_reason"]);
            for field in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
                let lists = own.iter().filter_map(|own| own["logprobs"][field].as_array());
                let joined: Vec<Value> = lists.flatten().cloned().collect();
                assert_eq!(choice["logprobs"][field], json!(joined), "{tokens} {field}");
            }
        }
    }
}

#[tokio::test]
async fn texts_are_computed_in_the_session_of_the_engine() {
    let engine = engine();
    let router = Server::new("pip", engine.clone()).router().unwrap();
    let steps = || engine.stats().steps;
    for (path, body) in [
        ("/v1/embeddings", json!({ "input": ["a fox", "a bear"] })),
        ("/v1/completions", json!({ "prompt": "Once upon", "echo": true, "logprobs": 1, "max_tokens": 0 })),
    ] {
        let before = steps();
        answer(&router, path, Some(body)).await;
        // The engine's thread counts a step after it has answered.
        for _ in 0..2000 {
            if steps() > before {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        assert!(steps() > before, "{path}");
    }
}

#[tokio::test]
async fn the_special_tokens_can_be_encoded() {
    let router = Server::new("pip", engine()).router().unwrap();
    let info = answer(&router, "/tokenizer_info", None).await;
    assert_eq!(info["model_max_length"], 1024);
    let body = json!({ "prompt": info["eos_token"], "add_special_tokens": false });
    assert_eq!(answer(&router, "/tokenize", Some(body)).await["count"], 1, "{info}");
}

#[tokio::test]
async fn tokens_outside_the_vocabulary_are_not_decoded() {
    let router = Server::new("pip", engine()).router().unwrap();
    let mut tokens = answer(&router, "/tokenize", Some(json!({ "prompt": "a fox" }))).await["tokens"].take();
    let text = answer(&router, "/detokenize", Some(json!({ "tokens": tokens }))).await;
    assert!(text["prompt"].as_str().unwrap().contains("a fox"), "{text}");
    for outside in [99_999_999, u32::MAX] {
        tokens[1] = outside.into();
        let (status, error) = error(&router, "/detokenize", json!({ "tokens": tokens })).await;
        assert_eq!((status, &error["param"]), (400, &json!("tokens")), "{error}");
        assert!(error["message"].as_str().unwrap().contains(&outside.to_string()), "{error}");
    }
}
