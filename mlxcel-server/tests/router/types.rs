//! Fields of requests whose values have other types.

use mlxcel_server::Server;
use serde_json::{Value, json};

use crate::harness::{answer, engine, error};
use crate::scripted::{QWEN3, Scripted};

/// Words of the parser and of the server's own code, which clients do not know.
const FOREIGN: [&str; 9] =
    ["line 1", "column", "struct ", "enum ", "variant", "usize", "invalid type", "expected", "missing field"];

/// A request that is answered, for each path with a body.
fn bodies() -> Vec<(&'static str, Value)> {
    let messages = json!([{ "role": "user", "content": "Hi" }]);
    vec![
        ("/v1/chat/completions", json!({ "messages": messages, "max_tokens": 2 })),
        ("/v1/messages", json!({ "messages": messages, "max_tokens": 2 })),
        ("/v1/messages/count_tokens", json!({ "messages": messages })),
        ("/v1/responses", json!({ "input": "Hi", "max_output_tokens": 2 })),
        ("/v1/completions", json!({ "prompt": "Hi", "max_tokens": 2 })),
        ("/v1/embeddings", json!({ "input": "Hi" })),
        ("/v1/rerank", json!({ "query": "Hi", "documents": ["Hi"] })),
        ("/tokenize", json!({ "prompt": "Hi" })),
        ("/detokenize", json!({ "tokens": [1] })),
    ]
}

#[tokio::test]
async fn errors_say_which_type_a_field_has() {
    let router = Server::new("pip", engine()).router().unwrap();
    let message = json!([{ "role": "user", "content": "Hi" }, { "content": "Hi" }]);
    let schema = json!({ "type": "json_schema", "json_schema": { "schema": { "type": "nonsense" } } });
    for (index, field, value, param, expected) in [
        (0, "max_tokens", json!(-1), "max_tokens", "an integer of at least 0"),
        (0, "messages", json!("Hi"), "messages", "a list of objects"),
        (0, "messages", message, "messages[1].role", "a string"),
        (
            0,
            "messages",
            json!([{ "role": "user", "contents": "Hi" }]),
            "messages[0].content",
            "a string or a list",
        ),
        (0, "response_format", schema, "response_format", "nonsense"),
        (0, "tool_choice", json!({ "type": "allowed_tools" }), "tool_choice", "not supported"),
        (0, "stop", json!(5), "stop", "a string or a list of strings"),
        (0, "stop", json!([5]), "stop", "a string or a list of strings"),
        (0, "temperature", json!("hot"), "temperature", "a number"),
        (0, "top_k", json!(1.5), "top_k", "an integer"),
        (0, "stream_options", json!({ "include_usage": 1 }), "stream_options.include_usage", "true or false"),
        (0, "stream_options", json!([]), "stream_options", "an object"),
        (0, "tool_choice", json!(true), "tool_choice", "auto, none, required"),
        (0, "n", json!(1_u64 << 40), "n", "from 1 to 16"),
        (0, "top_logprobs", json!(1 << 20), "top_logprobs", "at most 20"),
        (3, "max_output_tokens", json!("many"), "max_output_tokens", "an integer"),
        (3, "input", json!(5), "input", "a string or a list"),
        (3, "top_p", json!("all"), "top_p", "a number"),
        (3, "reasoning", json!({ "effort": 5 }), "reasoning.effort", "a string"),
        (4, "prompt", json!(["Hi", 5]), "prompt", "a list of strings, a list of token ids"),
        (3, "reasoning", json!("low"), "reasoning", "an object"),
        (3, "text", json!(5), "text", "an object"),
        (3, "input", json!([{ "content": "Hi" }]), "input[0].role", "a string"),
        (3, "input", json!([5]), "input[0]", "an object"),
        (4, "prompt", json!(["Hi", ""]), "prompt", "empty"),
        (4, "prompt", json!([1, 1 << 20]), "prompt", "vocabulary"),
        (4, "prompt", Value::Null, "prompt", "required"),
        (4, "logprobs", json!(1 << 20), "logprobs", "at most 5"),
        (4, "logit_bias", json!({ "5": "much" }), "logit_bias", "an object of numbers"),
        (5, "encoding_format", json!("hex"), "encoding_format", "\"float\" or \"base64\""),
        (5, "input", json!([1, 1 << 20]), "input", "vocabulary"),
        (6, "documents", json!(["Hi", { "txt": "Hi" }]), "documents[1]", "an object with the field text"),
        (6, "documents", json!([["Hi"]]), "documents[0]", "an object with the field text"),
        (8, "tokens", json!([1, -1]), "tokens[1]", "a token id"),
    ] {
        let (path, mut body) = bodies().swap_remove(index);
        body[field] = value;
        let (status, error) = error(&router, path, body).await;
        assert_eq!((status, &error["param"]), (400, &json!(param)), "{path} {field}: {error}");
        let said = error["message"].as_str().unwrap();
        assert!(said.contains(expected), "{path} {field}: {said}");
    }
    // Anthropic's errors name the field in the message.
    for (field, value, named) in [
        ("max_tokens", json!(-1), "max_tokens must be an integer"),
        ("max_tokens", Value::Null, "max_tokens is required"),
        ("stop_sequences", json!("end"), "stop_sequences must be a list of strings"),
        ("output_config", json!({ "effort": 5 }), "output_config.effort must be a string"),
        ("output_config", json!(5), "output_config must be an object"),
        ("thinking", json!("on"), "thinking must be an object"),
        ("thinking", json!(["enabled"]), "thinking must be an object"),
        ("messages", json!([{ "role": "tool", "content": "Hi" }]), "messages[0].role must be \"user\""),
        ("thinking", json!({ "type": "on" }), "thinking.type must be \"enabled\""),
    ] {
        let (path, mut body) = bodies().swap_remove(1);
        body[field] = value;
        let (status, error) = error(&router, path, body).await;
        assert!(status == 400 && error["message"].as_str().unwrap().contains(named), "{field}: {error}");
    }
}

#[tokio::test]
async fn schemas_of_tools_are_errors_of_the_tools() {
    let router = Server::new("pip", Scripted::new(QWEN3, "yes").engine()).router().unwrap();
    let nested = (0..120).fold(json!({}), |schema, _| json!({ "items": schema }));
    for schema in [json!({ "multipleOf": 1e-300 }), json!({ "pattern": "(" }), nested] {
        let parameters = json!({ "type": "object", "properties": { "at": schema } });
        let (path, mut body) = bodies().swap_remove(0);
        body["tools"] =
            json!([{ "type": "function", "function": { "name": "now", "parameters": parameters } }]);
        body["tool_choice"] = "required".into();
        let (status, error) = error(&router, path, body).await;
        assert_eq!((status, &error["param"]), (400, &json!("tools")), "{error}");
    }
}

#[tokio::test]
async fn parts_of_conversations_are_named_by_their_places() {
    let router = Server::new("pip", Scripted::new(QWEN3, "yes").engine()).router().unwrap();
    let user = json!({ "role": "user", "content": "Hi" });
    let call = |function: Value| json!({ "role": "assistant", "tool_calls": [{ "function": function }] });
    let block = |role: &str, block: Value| json!({ "role": role, "content": [block] });
    let image = json!({ "type": "image", "source": {} });
    let result = json!({ "type": "tool_result", "tool_use_id": "1", "content": [image] });
    let answer = json!({ "type": "function_call_output", "call_id": "1", "output": [image] });
    let item = json!({ "type": "function_call", "call_id": "1", "name": 5, "arguments": "{}" });
    for (index, field, second, place) in [
        (0, "messages", json!({ "role": "user", "content": 5 }), "messages[1].content"),
        (0, "messages", block("user", image.clone()), "messages[1].content[0]"),
        (0, "messages", call(json!({})), "messages[1].tool_calls[0].function.name"),
        (0, "messages", call(json!({ "name": 5 })), "messages[1].tool_calls[0].function.name"),
        (
            0,
            "messages",
            call(json!({ "name": "now", "arguments": 5 })),
            "messages[1].tool_calls[0].function.arguments",
        ),
        (
            0,
            "messages",
            json!({ "role": "tool", "tool_call_id": 5, "content": "" }),
            "messages[1].tool_call_id",
        ),
        (1, "messages", json!({ "role": "user", "content": 5 }), "messages[1].content"),
        (1, "messages", block("user", image.clone()), "messages[1].content[0]"),
        (1, "messages", block("user", result), "messages[1].content[0].content[0]"),
        (
            1,
            "messages",
            block("user", json!({ "type": "tool_result" })),
            "messages[1].content[0].tool_use_id",
        ),
        (
            1,
            "messages",
            block("assistant", json!({ "type": "tool_use", "id": "1" })),
            "messages[1].content[0].name",
        ),
        (3, "input", answer, "input[1].output[0]"),
        (3, "input", json!({ "type": "function_call_output", "output": "" }), "input[1].call_id"),
        (3, "input", item, "input[1].name"),
        (3, "input", json!({ "type": "item_reference", "id": "1" }), "input[1]"),
    ] {
        let (path, mut body) = bodies().swap_remove(index);
        body[field] = json!([user, second]);
        let (status, error) = error(&router, path, body).await;
        let is_named = match path {
            "/v1/messages" => error["message"].as_str().unwrap().contains(place),
            _ => error["param"] == place,
        };
        assert!(status == 400 && is_named, "{path} {place}: {status} {error}");
    }
}

#[tokio::test]
async fn a_value_of_any_type_in_any_field_is_accepted_or_named() {
    let router = Server::new("pip", Scripted::new(QWEN3, "yes").engine()).router().unwrap();
    let document = answer(&router, "/openapi.json", None).await;
    let content = "/post/requestBody/content/application~1json/schema/properties";
    let values = [
        json!(-1),
        json!(1.5),
        json!(u64::MAX),
        json!(1e30),
        json!("x"),
        json!(true),
        json!([]),
        json!({}),
        json!([1.5]),
        json!([[]]),
        json!([{}]),
        json!([null]),
        json!([u64::MAX]),
        json!({ "x": [] }),
        json!({ "x": null }),
    ];
    let mut named = 0;
    for (path, body) in bodies() {
        let fields = document["paths"][path].pointer(content).unwrap().as_object().unwrap();
        for (field, value) in fields.keys().flat_map(|field| values.iter().map(move |value| (field, value))) {
            let mut body = body.clone();
            body[field] = value.clone();
            let (status, error) = error(&router, path, body).await;
            if status == 200 {
                continue;
            }
            assert!(status == 400 || status == 404, "{path} {field} {value}: {status} {error}");
            let said = error["message"].as_str().unwrap();
            let foreign = FOREIGN.iter().find(|foreign| said.contains(*foreign));
            assert_eq!(foreign, None, "{path} {field} {value}: {said}");
            // The model of this test does not embed.
            if error["code"] == "unsupported" {
                continue;
            }
            let param = error["param"].as_str().unwrap_or_default();
            let is_named = said.contains(field.as_str()) || param.starts_with(field.as_str());
            assert!(is_named, "{path} {field} {value}: {error}");
            named += 1;
        }
    }
    assert!(named > 400, "{named}");
}

#[tokio::test]
async fn a_body_that_is_no_object_is_an_error_in_the_words_of_json() {
    let router = Server::new("pip", engine()).router().unwrap();
    for body in [json!([1, 2]), json!("prompt"), json!(5), Value::Null] {
        for (path, _) in bodies() {
            let (status, error) = error(&router, path, body.clone()).await;
            let said = error["message"].as_str().unwrap_or_default();
            assert!(status == 400 && said.contains("a JSON object"), "{path} {body}: {status} {error}");
        }
    }
}
