//! What clients may send, and the prompts that it becomes.

use axum::body::Body;
use axum::http::Request;
use mlxcel_server::Server;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::harness::{answer, ask, engine, error, text};
use crate::scripted::{Family, GPT_OSS, LLAMA3, MISTRAL, QWEN3, Scripted};

/// The prompt that a request becomes.
async fn prompt(family: Family, path: &str, body: Value) -> String {
    let model = Scripted::new(family, "yes");
    let router = Server::new("pip", model.engine()).router().unwrap();
    answer(&router, path, Some(body)).await;
    model.take_fed()
}

fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

#[tokio::test]
async fn messages_of_the_developer_are_those_of_the_system() {
    for (path, list) in [("/v1/chat/completions", "messages"), ("/v1/responses", "input")] {
        for (family, expected) in [
            (QWEN3, "<|im_start|>system\nBe brief.<|im_end|>"),
            (MISTRAL, "[INST] Be brief.\n\nHi[/INST]"),
            (GPT_OSS, "<|start|>developer<|message|># Instructions\n\nBe brief."),
        ] {
            let body = json!({ list: [{ "role": "developer", "content": "Be brief." }, user("Hi")] });
            let prompt = prompt(family, path, body).await;
            assert!(prompt.contains(expected), "{path} {}: {prompt}", family.template);
        }
    }
}

#[tokio::test]
async fn null_fields_of_messages_are_not_given() {
    let answer = json!({ "role": "assistant", "content": "Hi", "tool_calls": null, "refusal": null });
    let body = json!({ "messages": [user("Hi"), answer, user("Bye")] });
    let prompt = prompt(LLAMA3, "/v1/chat/completions", body).await;
    assert!(prompt.contains("Bye"), "{prompt}");
}

#[tokio::test]
async fn calls_in_a_row_are_one_turn() {
    let call = |id: &str| json!({ "type": "function_call", "call_id": id, "name": "now", "arguments": "{}" });
    let output = |id: &str| json!({ "type": "function_call_output", "call_id": id, "output": "noon" });
    let said = json!({ "role": "assistant", "content": "Wait" });
    for (items, expected) in [
        (vec![call("000000001"), call("000000002")], "assistant\n<tool_call>"),
        (vec![said, call("000000001"), call("000000002")], "assistant\nWait\n<tool_call>"),
    ] {
        let results = vec![output("000000001"), output("000000002")];
        let input = [vec![user("Hi")], items, results, vec![user("Bye")]].concat();
        let prompt = prompt(QWEN3, "/v1/responses", json!({ "input": input })).await;
        assert!(prompt.contains(expected), "{prompt}");
        assert_eq!(prompt.matches("<tool_call>").count(), 2, "{prompt}");
        // The answer's turn is the other one.
        assert_eq!(prompt.matches("<|im_start|>assistant").count(), 2, "{prompt}");
    }
}

#[tokio::test]
async fn anthropics_messages_have_the_system_and_results_of_tools_that_failed() {
    let call = json!({ "type": "tool_use", "id": "000000001", "name": "now", "input": {} });
    let result =
        json!({ "type": "tool_result", "tool_use_id": "000000001", "content": "no clock", "is_error": true });
    let messages = json!([
        user("Hi"), { "role": "assistant", "content": [call] }, { "role": "user", "content": [result] },
        { "role": "system", "content": [{ "type": "text", "text": "Be brief." }] }, user("Bye"),
    ]);
    let body = json!({ "messages": messages, "max_tokens": 9 });
    let prompt = prompt(QWEN3, "/v1/messages", body).await;
    assert!(prompt.contains("<|im_start|>system\nBe brief.<|im_end|>"), "{prompt}");
    assert!(prompt.contains("<tool_response>\nError: no clock\n</tool_response>"), "{prompt}");
}

#[tokio::test]
async fn null_means_not_given() {
    let router = Server::new("pip", engine()).router().unwrap();
    let messages = json!([user("Hi")]);
    for (path, required, optional) in [
        (
            "/v1/chat/completions",
            json!({ "messages": messages, "max_tokens": 2 }),
            "chat_template_kwargs continue_final_message tools tool_choice parallel_tool_calls modalities logprobs \
             top_logprobs reasoning_effort response_format stop n seed stream stream_options logit_bias temperature \
             functions ignore_eos",
        ),
        (
            "/v1/messages",
            json!({ "messages": messages, "max_tokens": 2 }),
            "stop_sequences tools tool_choice system thinking output_config stream temperature top_k",
        ),
        (
            "/v1/responses",
            json!({ "input": "Hi", "max_output_tokens": 2 }),
            "instructions text tools tool_choice reasoning previous_response_id include stream stream_options \
             temperature parallel_tool_calls",
        ),
        ("/v1/completions", json!({ "prompt": "Hi", "max_tokens": 2 }), "echo suffix best_of logprobs"),
        ("/v1/embeddings", json!({ "input": "Hi" }), "encoding_format dimensions"),
    ] {
        let mut body = required;
        for field in optional.split_whitespace() {
            body[field] = Value::Null;
        }
        answer(&router, path, Some(body)).await;
    }
    // This model does not rank; the fields are read before that.
    let body = json!({ "query": "a", "documents": ["b"], "top_n": null, "return_documents": null });
    assert_eq!(error(&router, "/v1/rerank", body).await.1["code"], "unsupported");
    let body = json!({ "input": "Hi", "max_output_tokens": 2, "stream": true, "stream_options": { "include_obfuscation": false } });
    assert_eq!(ask(&router, "/v1/responses", Some(body)).await.0, 200);
}

#[tokio::test]
async fn a_model_whose_name_has_a_slash_is_described() {
    let router = Server::new("org/pip", engine()).router().unwrap();
    for path in ["/v1/models/org/pip", "/v1/models/org%2Fpip"] {
        let (status, text) = ask(&router, path, None).await;
        assert!(status == 200 && text.contains("\"org/pip\""), "{path}: {text}");
    }
    assert_eq!(ask(&router, "/v1/models/org/other", None).await.0, 404);
}

#[tokio::test]
async fn names_in_metrics_are_escaped_as_prometheus_reads_them() {
    let router = Server::new("a\t\"b\"\\\n\u{200b}", engine()).router().unwrap();
    let (status, text) = ask(&router, "/metrics", None).await;
    let expected = "mlxcel_requests_queued{model=\"a\t\\\"b\\\"\\\\\\n\u{200b}\"} 0\n";
    assert!(status == 200 && text.contains(expected), "{text}");
}

#[tokio::test]
async fn prompts_are_counted_as_they_are_answered() {
    let router = Server::new("pip", engine()).router().unwrap();
    let tools = json!([{ "type": "function", "name": "now", "parameters": {} }]);
    let said = json!([{ "role": "user", "content": "Who is Pip?" }]);
    for body in [
        json!({ "input": "Who is Pip?" }),
        json!({ "input": said, "instructions": "Be brief.", "tools": tools }),
    ] {
        let count = answer(&router, "/v1/responses/input_tokens", Some(body.clone())).await;
        assert_eq!(count["object"], "response.input_tokens");
        let mut body = body;
        body["max_output_tokens"] = 1.into();
        let answer = answer(&router, "/v1/responses", Some(body)).await;
        assert_eq!(count["input_tokens"], answer["usage"]["input_tokens"]);
    }
    let (status, error) = error(&router, "/v1/responses/input_tokens", json!({})).await;
    assert_eq!((status, &error["param"]), (400, &json!("input")));
}

#[tokio::test]
async fn models_are_described_as_the_clients_api_has_them() {
    let router = Server::new("org/pip", engine()).router().unwrap();
    let ask = async |path: &str| {
        let request = Request::builder().uri(path).header("anthropic-version", "2023-06-01");
        let response = router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        (response.status().as_u16(), serde_json::from_str::<Value>(&text(response).await).unwrap())
    };
    let (status, models) = ask("/v1/models?limit=20").await;
    assert_eq!((status, &models["has_more"], &models["first_id"]), (200, &json!(false), &json!("org/pip")));
    let (status, model) = ask("/v1/models/org/pip").await;
    assert_eq!((status, &model, &model["type"]), (200, &models["data"][0], &json!("model")));
    let (status, error) = ask("/v1/models/other").await;
    assert_eq!(
        (status, &error["type"], &error["error"]["type"]),
        (404, &json!("error"), &json!("not_found_error"))
    );
}
