//! Reasoning apart from the answer, in the words of each API.

use axum::Router;
use mlxcel_server::Server;
use serde_json::{Value, json};

use crate::harness::{answer, ask, events, streamed};
use crate::scripted::{DEEPSEEK, Family, GPT_OSS, QWEN3, Scripted};

const PATHS: [&str; 3] = ["/v1/chat/completions", "/v1/messages", "/v1/responses"];

const CHANNELS: &str =
    "<|channel|>analysis<|message|>Once<|end|><|start|>assistant<|channel|>final<|message|>the end";

/// What was reasoned, said, and called.
type Parts = [String; 3];

fn router(family: Family, text: &str) -> Router {
    Server::new("pip", Scripted::new(family, text).engine()).router().unwrap()
}

fn question(path: &str) -> Value {
    let messages = json!([{ "role": "user", "content": "Hi" }]);
    match path {
        "/v1/responses" => json!({ "input": "Hi", "max_output_tokens": 400 }),
        _ => json!({ "messages": messages, "max_tokens": 400 }),
    }
}

/// A tool without arguments, as a path has it.
fn tool(path: &str) -> Value {
    let schema = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    let function = json!({ "name": "now", "description": "The time of day", "parameters": schema });
    match path {
        "/v1/messages" => json!({ "name": "now", "description": "The time of day", "input_schema": schema }),
        "/v1/responses" => {
            json!({ "type": "function", "name": "now", "description": "The time of day", "parameters": schema })
        }
        _ => json!({ "type": "function", "function": function }),
    }
}

/// The parts of the whole answer, and those that its events make.
async fn answers(router: &Router, path: &str, body: Value) -> [Parts; 2] {
    let whole = answer(router, path, Some(body.clone())).await;
    let (status, stream) = ask(router, path, Some(streamed(body))).await;
    assert_eq!(status, 200, "{path}: {stream}");
    let mut joined = Parts::default();
    events(&stream).iter().for_each(|event| read_event(event, &mut joined));
    [read_whole(&whole), joined]
}

fn add(parts: &mut Parts, texts: [&Value; 3]) {
    for (part, text) in parts.iter_mut().zip(texts) {
        part.push_str(text.as_str().unwrap_or_default());
    }
}

fn read_whole(answer: &Value) -> Parts {
    let mut parts = Parts::default();
    let message = &answer["choices"][0]["message"];
    add(
        &mut parts,
        [&message["reasoning_content"], &message["content"], &message["tool_calls"][0]["function"]["name"]],
    );
    for block in answer["content"].as_array().into_iter().flatten() {
        add(&mut parts, [&block["thinking"], &block["text"], &block["name"]]);
    }
    for item in answer["output"].as_array().into_iter().flatten() {
        let text = &item["content"][0]["text"];
        let none = &Value::Null;
        let [reasoning, said] = if item["type"] == "reasoning" { [text, none] } else { [none, text] };
        add(&mut parts, [reasoning, said, &item["name"]]);
    }
    parts
}

fn read_event(event: &Value, parts: &mut Parts) {
    let (delta, none) = (&event["choices"][0]["delta"], &Value::Null);
    add(parts, [&delta["reasoning_content"], &delta["content"], &delta["tool_calls"][0]["function"]["name"]]);
    let delta = &event["delta"];
    add(parts, [&delta["thinking"], &delta["text"], &event["content_block"]["name"]]);
    match event["type"].as_str() {
        Some("response.reasoning_text.delta") => add(parts, [delta, none, none]),
        Some("response.output_text.delta") => add(parts, [none, delta, none]),
        Some("response.output_item.added") => add(parts, [none, none, &event["item"]["name"]]),
        _ => {}
    }
}

#[tokio::test]
async fn reasoning_is_separated_from_the_answer() {
    for (family, text) in [
        (GPT_OSS, CHANNELS),
        (QWEN3, "<think>\nOnce\n</think>\n\nthe end"),
        (DEEPSEEK, "Once\n</think>\n\nthe end"),
    ] {
        let router = router(family, text);
        for path in PATHS {
            for with_tool in [false, true] {
                let mut body = question(path);
                if with_tool {
                    body["tools"] = json!([tool(path)]);
                }
                let expected = ["Once", "the end", ""].map(str::to_owned);
                let answers = answers(&router, path, body).await;
                assert_eq!(answers, [expected.clone(), expected], "{} {path} {with_tool}", family.template);
            }
        }
    }
}

#[tokio::test]
async fn calls_follow_reasoning() {
    let call = "<think>\nOnce\n</think>\n\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    let channel = "<|channel|>analysis<|message|>Once<|end|><|start|>assistant<|channel|>commentary to=functions.now \
        <|constrain|>json<|message|>{}";
    for (family, text) in [(QWEN3, call), (GPT_OSS, channel)] {
        let router = router(family, text);
        for path in PATHS {
            let mut body = question(path);
            body["tools"] = json!([tool(path)]);
            let expected = ["Once", "", "now"].map(str::to_owned);
            let answers = answers(&router, path, body).await;
            assert_eq!(answers, [expected.clone(), expected], "{} {path}", family.template);
        }
    }
}

#[tokio::test]
async fn an_answer_in_a_format_is_no_reasoning_if_the_prompt_opens_the_tag() {
    let router = router(DEEPSEEK, "{\"a\": 1}");
    let mut body = question(PATHS[0]);
    body["response_format"] = json!({ "type": "json_object" });
    let expected = ["", "{\"a\": 1}", ""].map(str::to_owned);
    assert_eq!(answers(&router, PATHS[0], body).await, [expected.clone(), expected]);
}

#[tokio::test]
async fn an_answer_with_reasoning_is_part_of_the_next_turn() {
    let router = router(GPT_OSS, CHANNELS);
    let body = question(PATHS[0]);
    let whole = answer(&router, PATHS[0], Some(body.clone())).await;
    let (question, said) = (&body["messages"][0], &whole["choices"][0]["message"]);
    let body = json!({ "messages": [question, said, question], "max_tokens": 400 });
    answer(&router, PATHS[0], Some(body)).await;
}

#[tokio::test]
async fn white_space_before_a_call_is_no_text() {
    let call = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    for (said, content) in
        [("\n\n", ""), ("the\n end \n\n", "the\n end"), ("<think>\nOnce\n</think>\n\nthe end\n", "the end")]
    {
        let router = router(QWEN3, &format!("{said}{call}"));
        for path in PATHS {
            let mut body = question(path);
            body["tools"] = json!([tool(path)]);
            let [whole, joined] = answers(&router, path, body).await;
            assert_eq!(whole, joined, "{path}: {said:?}");
            assert_eq!(whole[1..], [content, "now"], "{path}: {said:?}");
        }
    }
    // Without a call it is.
    let router = router(QWEN3, "the\n end\n\n");
    for path in PATHS {
        let mut body = question(path);
        body["tools"] = json!([tool(path)]);
        let expected = ["", "the\n end\n\n", ""].map(str::to_owned);
        assert_eq!(answers(&router, path, body).await, [expected.clone(), expected], "{path}");
    }
}

#[tokio::test]
async fn the_usage_of_an_answer_has_its_reasoning_tokens() {
    for (family, reasoning, text) in
        [(QWEN3, "<think>\nOnce\n", "</think>\n\nthe end"), (QWEN3, "", "the end")]
    {
        let router = router(family, &format!("{reasoning}{text}"));
        let tokens = json!({ "prompt": reasoning, "add_special_tokens": false });
        let expected = &answer(&router, "/tokenize", Some(tokens)).await["count"];
        for (path, total, details) in [
            ("/v1/chat/completions", "completion_tokens", "completion_tokens_details"),
            ("/v1/responses", "output_tokens", "output_tokens_details"),
        ] {
            let mut body = question(path);
            let whole = answer(&router, path, Some(body.clone())).await;
            body["stream_options"] = json!({ "include_usage": true });
            let (_, stream) = ask(&router, path, Some(streamed(body))).await;
            let last = events(&stream).pop().unwrap();
            let last = if path == "/v1/responses" { &last["response"] } else { &last };
            for usage in [&whole["usage"], &last["usage"]] {
                assert_eq!(&usage[details]["reasoning_tokens"], expected, "{path}: {usage}");
                assert!(usage[total].as_u64() > expected.as_u64(), "{path}: {usage}");
            }
        }
    }
}
