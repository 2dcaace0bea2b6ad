//! Anthropic's API, whole and in events. Its own client drives it in `cargo xtask test --only server`.

use serde_json::{Value, json};

use crate::server::harness::{Server, answers};

const QUESTION: &str = "Tell me a story about a fox named Pip.";

/// The schema of a city, which is Oslo.
fn schema() -> Value {
    json!({
        "type": "object", "properties": { "city": { "enum": ["Oslo"] } }, "required": ["city"], "additionalProperties": false,
    })
}

fn ask(server: &Server, body: &Value) -> (u16, Value) {
    server.post("/v1/messages", body)
}

/// The events of an answer, whose names are their types.
fn events(server: &Server, body: &Value) -> Vec<Value> {
    let (events, text) = server.streamed("/v1/messages", body);
    let names: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!(events.iter().map(|event| event["type"].as_str().unwrap()).collect::<Vec<_>>(), names);
    events
}

/// The message that events make, as a client puts it together.
fn joined(events: &[Value]) -> Value {
    let mut message = events[0]["message"].clone();
    for event in events {
        let index = usize::try_from(event["index"].as_u64().unwrap_or_default()).unwrap();
        let content = message["content"].as_array_mut().unwrap();
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert_eq!(index, content.len());
                content.push(event["content_block"].clone());
            }
            "content_block_delta" => {
                let (block, delta) = (&mut content[index], &event["delta"]);
                if let Some(text) = delta["text"].as_str() {
                    block["text"] = format!("{}{text}", block["text"].as_str().unwrap()).into();
                }
                if let Some(json) = delta["partial_json"].as_str() {
                    block["json"] = format!("{}{json}", block["json"].as_str().unwrap_or_default()).into();
                }
            }
            "content_block_stop" => {
                if let Some(json) = content[index].as_object_mut().unwrap().remove("json") {
                    content[index]["input"] = serde_json::from_str(json.as_str().unwrap()).unwrap();
                }
            }
            "message_delta" => {
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
                message["stop_sequence"] = event["delta"]["stop_sequence"].clone();
                message["usage"] = event["usage"].clone();
            }
            _ => {}
        }
    }
    message
}

#[test]
fn messages_say_what_a_chat_says_whole_and_in_events() {
    let server = Server::start(&["--prefix-cache", "0"]);
    let chat =
        json!({ "messages": [{ "role": "user", "content": QUESTION }], "temperature": 0, "max_tokens": 20 });
    let [(chat, _), _] = answers(&server, &chat);
    let blocks = json!([{ "type": "text", "text": QUESTION, "cache_control": { "type": "ephemeral" } }]);
    for content in [json!(QUESTION), blocks] {
        let body = json!({
            "model": "storyteller", "max_tokens": 20, "temperature": 0, "messages": [{ "role": "user", "content": content }],
        });
        let (status, whole) = ask(&server, &body);
        assert_eq!((status, &whole["content"][0]["text"]), (200, &chat["content"]), "{whole}");
        assert_eq!(whole["stop_reason"], "max_tokens");
        assert_eq!(whole["usage"]["output_tokens"], 20);
        let events = events(&server, &body);
        assert_eq!(events[0]["type"], "message_start");
        assert_eq!(events.last().unwrap()["type"], "message_stop");
        let mut streamed = joined(&events);
        streamed["id"] = whole["id"].clone();
        assert_eq!(streamed, whole);
        let count = server.answer("/v1/messages/count_tokens", &json!({ "messages": body["messages"] }));
        assert_eq!(count["input_tokens"], whole["usage"]["input_tokens"]);
    }
}

#[test]
fn messages_end_at_stop_sequences_and_go_on_where_the_assistant_began() {
    let server = Server::start(&[]);
    let body = |messages: Value| json!({ "max_tokens": 40, "temperature": 0, "messages": messages, "stop_sequences": ["#", "."] });
    let (_, first) = ask(&server, &body(json!([{ "role": "user", "content": QUESTION }])));
    assert_eq!((&first["stop_reason"], &first["stop_sequence"]), (&json!("stop_sequence"), &json!(".")));
    let text = first["content"][0]["text"].as_str().unwrap();
    let half: String = text.chars().take(text.rfind(' ').unwrap()).collect();
    let begun = json!([{ "role": "user", "content": QUESTION }, { "role": "assistant", "content": half }]);
    let (_, rest) = ask(&server, &body(begun));
    assert_eq!(format!("{half}{}", rest["content"][0]["text"].as_str().unwrap()), text);
}

#[test]
fn messages_call_tools_and_read_their_results() {
    let server = Server::start(&[]);
    let tool = json!({ "name": "weather", "description": "The weather", "input_schema": schema() });
    let body = json!({
        "max_tokens": 200, "temperature": 0, "system": [{ "type": "text", "text": "Be short." }], "tools": [tool],
        "tool_choice": { "type": "tool", "name": "weather", "disable_parallel_tool_use": true },
        "messages": [
            { "role": "user", "content": "Is it raining?" },
            { "role": "assistant", "content": [{ "type": "tool_use", "id": "a", "name": "weather", "input": { "city": "Oslo" } }] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "a", "content": [{ "type": "text", "text": "yes" }] },
                { "type": "text", "text": "And now?" },
            ] },
        ],
    });
    let (status, whole) = ask(&server, &body);
    assert_eq!((status, &whole["stop_reason"]), (200, &json!("tool_use")), "{whole}");
    let call = &whole["content"][0];
    let expected =
        json!({ "type": "tool_use", "id": call["id"], "name": "weather", "input": { "city": "Oslo" } });
    assert_eq!(*call, expected);
    let streamed = joined(&events(&server, &body));
    assert_eq!(streamed["content"][0]["input"], call["input"]);
    assert_eq!(streamed["stop_reason"], "tool_use");
}

#[test]
fn errors_of_messages_have_their_own_format() {
    let server = Server::start(&["--api-key", "secret"]);
    let messages = json!([{ "role": "user", "content": "x" }]);
    let unknown = json!({ "messages": messages, "max_tokens": 1, "unknown": 1 });
    let other = json!({ "messages": messages, "max_tokens": 1, "model": "other" });
    for (key, body, status, kind) in [
        ("wrong", json!({}), 401, "authentication_error"),
        ("secret", json!({}), 400, "invalid_request_error"),
        ("secret", json!({ "messages": messages }), 400, "invalid_request_error"),
        ("secret", unknown, 400, "invalid_request_error"),
        ("secret", other, 404, "not_found_error"),
    ] {
        let headers = format!("x-api-key: {key}\r\n");
        let (found, text) = server.ask("POST", "/v1/messages", &headers, &body.to_string());
        let error: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((found, &error["error"]["type"]), (status, &json!(kind)), "{text}");
        assert!(error["type"] == "error" && error["error"]["message"].is_string(), "{text}");
    }
}

#[test]
fn messages_follow_the_schema_of_their_output_format() {
    let server = Server::start(&[]);
    let config = json!({ "effort": "low", "format": { "type": "json_schema", "schema": schema() } });
    let messages = json!([{ "role": "user", "content": "Where?" }]);
    let body = json!({ "max_tokens": 50, "messages": messages, "output_config": config, "speed": "fast" });
    let (status, answer) = ask(&server, &body);
    assert_eq!((status, &answer["content"][0]["text"]), (200, &json!("{\"city\": \"Oslo\"}")), "{answer}");
}
