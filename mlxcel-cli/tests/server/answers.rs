//! What answers say, whole and in pieces.

use std::io::{self, BufRead, BufReader, Read};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::server::harness::{Server, answers, whole};

/// The rest of an answer of so many tokens, during which the server gets a SIGTERM, and how reading it ended.
fn rest_after_term(server: &Server, tokens: usize) -> (String, io::Result<usize>) {
    let mut stream = BufReader::new(server.chat(tokens, true));
    let mut line = String::new();
    while !line.contains("Pip") {
        line.clear();
        stream.read_line(&mut line).unwrap();
    }
    let process = rustix::process::Pid::from_child(&server.child);
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    let mut rest = String::new();
    let end = stream.read_to_string(&mut rest);
    (rest, end)
}

#[test]
fn an_answer_that_the_server_cuts_is_an_error() {
    let late = Server::start(&["--time-limit", "0.000001"]);
    for stream in [false, true] {
        let answer = whole(late.chat(5, stream));
        assert!(answer.contains("\"time_limit\"") && !answer.contains("\"length\""), "{answer}");
        // No token came before the limit.
        assert!(answer.starts_with("HTTP/1.1 504"), "{answer}");
    }
    let mut server = Server::start(&["--grace", "0"]);
    let (rest, _) = rest_after_term(&server, 900);
    assert!(rest.contains("\"shutting_down\"") && !rest.contains("\"length\""), "{rest}");
    assert!(server.child.wait().unwrap().success());
}

#[test]
fn responses_say_what_a_chat_says_whole_and_in_events() {
    let server = Server::start(&[]);
    let question = "Tell me a story about a fox named Pip.";
    let chat =
        json!({ "messages": [{ "role": "user", "content": question }], "temperature": 0, "max_tokens": 20 });
    let [(chat, _), _] = answers(&server, &chat);
    let parts = json!([{ "role": "user", "content": [{ "type": "input_text", "text": question }] }]);
    for input in [json!(question), parts] {
        let body = json!({ "input": input, "temperature": 0, "max_output_tokens": 20 });
        let whole = server.answer("/v1/responses", &body);
        assert_eq!(whole["status"], "incomplete");
        assert_eq!(whole["incomplete_details"]["reason"], "max_output_tokens");
        assert_eq!(whole["output"][0]["content"][0]["text"], chat["content"]);
        assert_eq!(whole["usage"]["output_tokens"], 20);
        let (events, text) = server.streamed("/v1/responses", &body);
        let numbers = events.iter().enumerate().all(|(index, event)| event["sequence_number"] == index);
        assert!(numbers && text.contains("event: response.created"), "{text}");
        let deltas = events.iter().filter(|event| event["type"] == "response.output_text.delta");
        let joined: String = deltas.map(|event| event["delta"].as_str().unwrap()).collect();
        assert_eq!(joined, chat["content"].as_str().unwrap());
        let last = events.last().unwrap();
        assert_eq!(last["type"], "response.incomplete");
        assert_eq!(last["response"]["output"][0]["content"], whole["output"][0]["content"]);
    }
    let refused = json!({ "input": "x", "previous_response_id": "resp_1" });
    assert_eq!(server.post("/v1/responses", &refused).0, 400);
    let parameters = json!({ "type": "object", "properties": { "city": { "enum": ["Oslo"] } }, "required": ["city"], "additionalProperties": false });
    let tool = json!({ "type": "function", "name": "weather", "parameters": parameters });
    let body = json!({
        "input": [
            { "role": "user", "content": "Is it raining?" },
            { "type": "function_call", "call_id": "a", "name": "weather", "arguments": "{\"city\": \"Oslo\"}" },
            { "type": "function_call_output", "call_id": "a", "output": "yes" },
        ],
        "instructions": "Be short.", "tools": [tool], "tool_choice": { "type": "function", "name": "weather" },
        "parallel_tool_calls": false, "temperature": 0,
    });
    let call = server.answer("/v1/responses", &body)["output"][0].clone();
    assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("weather")));
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments["city"], "Oslo");
    let (_, text) = server.streamed("/v1/responses", &body);
    for event in
        ["function_call_arguments.delta", "function_call_arguments.done", "output_item.done", "completed"]
    {
        assert!(text.contains(&format!("event: response.{event}")), "{event}: {text}");
    }
    let format = json!({ "format": { "type": "json_schema", "name": "place", "schema": parameters } });
    let place = server.answer("/v1/responses", &json!({ "input": "x", "text": format }));
    assert_eq!(place["output"][0]["content"][0]["text"], "{\"city\": \"Oslo\"}");
}

#[test]
fn a_completion_repeats_its_prompt_with_log_probabilities() {
    let server = Server::start(&[]);
    let ask = |body: Value| server.answer("/v1/completions", &body);
    let whole = ask(json!({ "prompt": "Once", "max_tokens": 6, "temperature": 0, "logprobs": 2 }));
    let text = format!("Once{}", whole["choices"][0]["text"].as_str().unwrap());
    // The log probabilities of a text are those with which it was generated.
    let asked = json!({ "prompt": [text], "max_tokens": 0, "echo": true, "logprobs": 2 });
    let echo = ask(asked)["choices"][0].clone();
    assert_eq!(echo["text"], text.as_str());
    let list = |of: &Value, name: &str| of["logprobs"][name].as_array().unwrap().clone();
    assert_eq!(list(&echo, "token_logprobs")[0], Value::Null);
    assert_eq!(list(&echo, "top_logprobs")[0], Value::Null);
    let (tail, generated) = (list(&echo, "token_logprobs"), list(&whole["choices"][0], "token_logprobs"));
    let tail = &tail[tail.len() - generated.len()..];
    for (scored, drawn) in tail.iter().zip(&generated) {
        assert!((scored.as_f64().unwrap() - drawn.as_f64().unwrap()).abs() < 1e-3, "{tail:?} {generated:?}");
    }
    let both =
        ask(json!({ "prompt": "Once", "max_tokens": 6, "temperature": 0, "logprobs": 2, "echo": true }));
    let both = &both["choices"][0];
    assert_eq!((&both["text"], list(both, "tokens")), (&json!(text), list(&echo, "tokens")));
    let offsets: Vec<u64> = list(both, "text_offset").iter().map(|at| at.as_u64().unwrap()).collect();
    assert!(offsets.is_sorted(), "{offsets:?}");
}

#[test]
fn embeddings_take_tokens_many_texts_and_dimensions() {
    let server = Server::start(&[]);
    let ask = |body: Value| server.post("/v1/embeddings", &body);
    let vector = |answer: &Value, index: usize| -> Vec<f64> {
        let vector = answer["data"][index]["embedding"].as_array().unwrap();
        vector.iter().map(|value| value.as_f64().unwrap()).collect()
    };
    let (_, whole) = ask(json!({ "input": [[40, 71, 18], [40, 71]] }));
    let (_, one) = ask(json!({ "input": [40, 71, 18] }));
    assert_eq!((vector(&whole, 0), &whole["usage"]["prompt_tokens"]), (vector(&one, 0), &json!(5)));
    let (_, short) = ask(json!({ "input": [40, 71, 18], "dimensions": 8 }));
    let (short, long) = (vector(&short, 0), vector(&one, 0));
    let length = long[..8].iter().map(|value| value * value).sum::<f64>().sqrt();
    assert!(short.iter().zip(&long).all(|(short, long)| (short - long / length).abs() < 1e-5), "{short:?}");
    assert_eq!(short.len(), 8);
    let (status, many) = ask(json!({ "input": vec!["a"; 100] }));
    assert_eq!((status, many["data"].as_array().unwrap().len()), (200, 100));
    for wrong in [
        json!({ "input": vec!["a"; 2049] }),
        json!({ "input": "a", "dimensions": 0 }),
        json!({ "input": "a", "dimensions": 100_000 }),
    ] {
        assert_eq!(ask(wrong).0, 400);
    }
}

#[test]
fn an_encoder_reranks_and_does_not_chat() {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/encoders/bert-reranker");
    let server = Server::start(&["--model", model]);
    let ask = |body: Value| server.post("/v1/rerank", &body);
    let documents = json!(["a b", { "text": "c d e" }, "f"]);
    let (status, answer) = ask(json!({ "query": "b", "documents": documents, "return_documents": true }));
    let results = answer["results"].as_array().unwrap();
    assert_eq!((status, results.len()), (200, 3), "{answer}");
    let scores: Vec<f64> = results.iter().map(|result| result["relevance_score"].as_f64().unwrap()).collect();
    assert!(
        scores.is_sorted_by(|one, other| one >= other)
            && scores.iter().all(|score| (0.0..=1.0).contains(score))
    );
    for result in results {
        let document = &documents[result["index"].as_u64().unwrap() as usize];
        assert_eq!(&result["document"]["text"], document.get("text").unwrap_or(document));
    }
    let (_, best) = ask(json!({ "query": "b", "documents": documents, "top_n": 1 }));
    assert_eq!(best["results"], json!([{ "index": results[0]["index"], "relevance_score": scores[0] }]));
    for wrong in
        [json!({ "query": "b", "documents": [] }), json!({ "query": "b", "documents": ["a"], "top_n": 0 })]
    {
        assert_eq!(ask(wrong).0, 400);
    }
    let chat = json!({ "messages": [{ "role": "user", "content": "a" }] });
    assert_eq!(server.post("/v1/chat/completions", &chat).0, 400);
    // Nor does a story teller rerank.
    let (status, said) =
        Server::start(&[]).ask("POST", "/v1/rerank", "", r#"{"query":"b","documents":["a"]}"#);
    assert!(status == 400 && said.contains("unsupported"), "{status} {said}");
}

#[test]
fn a_signal_lets_running_requests_finish() {
    let mut server = Server::start(&[]);
    let (rest, end) = rest_after_term(&server, 300);
    end.unwrap();
    assert!(rest.contains(r#""finish_reason":"length""#) && rest.contains("[DONE]"), "{rest}");
    let status = server.child.wait().unwrap();
    assert!(status.success(), "{status}");
    assert!(TcpStream::connect(&server.address).is_err());
}

#[test]
fn response_format_is_honoured() {
    let server = Server::start(&[]);
    let schema = json!({
        "type": "object",
        "properties": { "name": { "type": "string", "maxLength": 10 }, "legs": { "type": "integer", "minimum": 0, "maximum": 8 } },
        "required": ["name", "legs"],
        "additionalProperties": false
    });
    let ask = |format: Value| {
        json!({
            "messages": [{ "role": "user", "content": "Who is Pip?" }], "temperature": 1.5, "seed": 3,
            "max_tokens": 200, "response_format": format,
        })
    };
    let format =
        json!({ "type": "json_schema", "json_schema": { "name": "fox", "strict": true, "schema": schema } });
    let [(whole, reason), (streamed, streamed_reason)] = answers(&server, &ask(format));
    let fox: Value = serde_json::from_str(whole["content"].as_str().unwrap()).unwrap();
    assert!(fox["name"].is_string() && fox["legs"].as_u64().unwrap() <= 8, "{fox}");
    assert_eq!((reason.as_str(), streamed_reason.as_str()), ("stop", "stop"));
    assert_eq!(streamed["content"], whole["content"]);
    let [(object, reason), _] = answers(&server, &ask(json!({ "type": "json_object" })));
    let text = object["content"].as_str().unwrap();
    assert!(
        text.starts_with('{') && (reason == "length" || serde_json::from_str::<Value>(text).is_ok()),
        "{text}"
    );
    for (format, said) in [
        (json!({ "type": "xml" }), "response_format"),
        (json!({ "type": "json_schema", "json_schema": {} }), "schema"),
        (
            json!({ "type": "json_schema", "json_schema": { "schema": { "type": "integer", "minimum": 2, "maximum": 1 } } }),
            "grammar",
        ),
    ] {
        let (status, text) = server.ask("POST", "/v1/chat/completions", "", &ask(format).to_string());
        assert!(status == 400 && text.contains(said), "{status}: {text}");
    }
}

#[test]
fn tool_calls_match_the_tools_schemas() {
    let server = Server::start(&[]);
    let tool = |name: &str| {
        json!({ "type": "function", "function": { "name": name, "parameters": {
            "type": "object", "properties": { "city": { "enum": ["Oslo", "Bergen"] } }, "required": ["city"],
            "additionalProperties": false,
        }}})
    };
    let ask = |choice: Value| {
        json!({
            "messages": [
                { "role": "user", "content": "Is it raining?" },
                { "role": "assistant", "content": null, "tool_calls": [
                    { "id": "a", "type": "function", "function": { "name": "weather", "arguments": "{\"city\": \"Oslo\"}" } }
                ]},
                { "role": "tool", "tool_call_id": "a", "content": "yes" },
                { "role": "user", "content": "And there?" }
            ],
            "tools": [tool("weather"), tool("news")], "tool_choice": choice, "temperature": 1.5, "seed": 5,
            "max_tokens": 300, "parallel_tool_calls": false,
        })
    };
    for (choice, names) in [
        (json!("required"), &["weather", "news"][..]),
        (json!({ "type": "function", "function": { "name": "news" } }), &["news"][..]),
    ] {
        let [(whole, reason), (streamed, streamed_reason)] = answers(&server, &ask(choice));
        assert_eq!((reason.as_str(), streamed_reason.as_str()), ("tool_calls", "tool_calls"), "{whole}");
        let call = &whole["tool_calls"][0];
        assert!(
            whole["content"].is_null() && call["type"] == "function" && call["id"].is_string(),
            "{whole}"
        );
        assert!(names.contains(&call["function"]["name"].as_str().unwrap()), "{whole}");
        let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
        assert!(["Oslo", "Bergen"].contains(&arguments["city"].as_str().unwrap()), "{whole}");
        let function = &streamed["tool_calls"][0];
        assert_eq!(function, &call["function"]);
    }
    let [(auto, _), (streamed, _)] = answers(&server, &ask(json!("auto")));
    assert_eq!(auto["content"].as_str().unwrap_or_default(), streamed["content"]);
    let [(none, _), _] = answers(&server, &ask(json!("none")));
    assert!(none["content"].is_string() && none["tool_calls"].is_null(), "{none}");
    for choice in [json!("sometimes"), json!({ "function": { "name": "other" } })] {
        let (status, text) = server.ask("POST", "/v1/chat/completions", "", &ask(choice).to_string());
        assert!(status == 400 && text.contains("tool_choice"), "{status}: {text}");
    }
}
