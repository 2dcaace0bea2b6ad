//! The program `server`, spoken to over its socket. OpenAI's own client drives it in `cargo xtask test --only server`.
#![cfg(all(feature = "portable", unix))]
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// A running server, ended with the test.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_server"))
            .args(["--backend", "portable", "--port", "0"])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("http://").unwrap().to_owned();
        Self { child, address }
    }

    /// Sends a request, and leaves the answer to be read.
    fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n{headers}\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        // A body that is too long is refused before it is read.
        let _ = stream.write_all(body.as_bytes());
        stream
    }

    /// The status and the body of the answer.
    fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> (u16, String) {
        let mut answer = Vec::new();
        let _ = self.send(method, path, headers, body).read_to_end(&mut answer);
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    fn get(&self, path: &str) -> (u16, String) {
        self.ask("GET", path, "", "")
    }

    /// A chat of `tokens` tokens.
    fn chat(&self, tokens: usize, stream: bool) -> TcpStream {
        let question = json!([{ "role": "user", "content": "Tell me a story about a fox named Pip." }]);
        let body = json!({
            "messages": question, "temperature": 0, "max_tokens": tokens, "ignore_eos": true, "stream": stream,
        });
        self.send("POST", "/v1/chat/completions", "", &body.to_string())
    }

    /// The value of a figure of the metrics.
    fn metric(&self, name: &str) -> f64 {
        let (_, text) = self.get("/metrics");
        let line =
            text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
        line.unwrap().rsplit(' ').next().unwrap().parse().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn invalid_requests_are_rejected_with_a_reason() {
    let server = Server::start(&["--max-body", "2000", "--name", "pip"]);
    assert_eq!(server.get("/health"), (200, r#"{"status":"ok"}"#.to_owned()));
    let models: Value = serde_json::from_str(&server.get("/v1/models").1).unwrap();
    assert_eq!(models["data"][0]["id"], "pip");
    assert_eq!(server.get("/v1/models/other").0, 404);
    assert_eq!(server.get("/nothing").0, 404);
    assert_eq!(server.get("/v1/completions").0, 405);
    let post = |body: &str| server.ask("POST", "/v1/completions", "", body);
    for (body, status, said) in [
        ("{", 400, "EOF"),
        ("{}", 400, "prompt"),
        (r#"{"prompt":{}}"#, 400, "prompt"),
        (r#"{"prompt":""}"#, 400, "empty"),
        (r#"{"prompt":"x","temperature":-1}"#, 400, "temperature"),
        (r#"{"prompt":"x","stop":[""]}"#, 400, "stop string"),
        (r#"{"prompt":"x","suffix":"y"}"#, 400, "suffix"),
        (r#"{"prompt":"x","logit_bias":{"x":1}}"#, 400, "logit_bias"),
        (&format!(r#"{{"prompt":"{}"}}"#, "x".repeat(3000)), 413, "limit"),
    ] {
        let (found, text) = post(body);
        assert_eq!(found, status, "{body}: {text}");
        let error: Value = serde_json::from_str(&text).unwrap();
        assert!(error["error"]["message"].as_str().unwrap().contains(said), "{body}: {text}");
    }
    // A page of another site can send what it does not call JSON.
    let body = r#"{"prompt":"x"}"#;
    let plain = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.write_all(plain.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 415"), "{answer}");
}

#[test]
fn unknown_fields_and_other_models_are_rejected_by_name() {
    let server = Server::start(&["--name", "pip"]);
    let messages = json!([{ "role": "user", "content": "x" }]);
    let of_path = [
        ("/v1/completions", json!({ "prompt": "x", "max_tokens": 1 })),
        ("/v1/chat/completions", json!({ "messages": messages, "max_tokens": 1 })),
        ("/v1/embeddings", json!({ "input": "x" })),
    ];
    for (path, body) in of_path {
        let ask = |field: &str, value: Value| {
            let mut body = body.clone();
            body[field] = value;
            let (status, text) = server.ask("POST", path, "", &body.to_string());
            let error = serde_json::from_str::<Value>(&text).unwrap()["error"].clone();
            (status, error["param"].clone(), error["code"].clone())
        };
        for field in ["guided_json", "grammar", "stop_token_ids", "temprature"] {
            assert_eq!(ask(field, json!("x")), (400, json!(field), json!("unsupported")), "{path}");
            assert_eq!(ask(field, Value::Null).0, 200, "{path} {field}");
        }
        assert_eq!(ask("user", json!("x")).0, 200, "{path}");
        assert_eq!(ask("model", json!("pip")).0, 200, "{path}");
        assert_eq!(ask("model", json!("gpt")), (404, json!("model"), json!("model_not_found")), "{path}");
    }
}

#[test]
fn an_answer_that_the_server_cuts_is_an_error() {
    let late = Server::start(&["--time-limit", "0"]);
    for stream in [false, true] {
        let mut answer = String::new();
        late.chat(5, stream).read_to_string(&mut answer).unwrap();
        assert!(answer.contains("\"time_limit\"") && !answer.contains("\"length\""), "{answer}");
        assert_eq!(answer.starts_with("HTTP/1.1 504"), !stream, "{answer}");
    }
    let mut server = Server::start(&["--grace", "0"]);
    let mut stream = BufReader::new(server.chat(900, true));
    let mut line = String::new();
    while !line.contains("Pip") {
        line.clear();
        stream.read_line(&mut line).unwrap();
    }
    let process = rustix::process::Pid::from_child(&server.child);
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    let mut rest = String::new();
    let _ = stream.read_to_string(&mut rest);
    assert!(rest.contains("\"shutting_down\"") && !rest.contains("\"length\""), "{rest}");
    assert!(server.child.wait().unwrap().success());
}

#[test]
fn requests_have_ids() {
    let server = Server::start(&[]);
    let id = |headers: &str| {
        let mut answer = String::new();
        server.send("GET", "/nothing", headers, "").read_to_string(&mut answer).unwrap();
        let line = answer.lines().find_map(|line| line.strip_prefix("x-request-id: "));
        line.unwrap().to_owned()
    };
    assert_eq!(id("X-Request-Id: mine\r\n"), "mine");
    assert_ne!(id(""), id(""));
}

/// Each field of a request at its largest, or at what is most work. A stream of somebody else goes on beside it.
#[test]
fn no_field_of_a_request_holds_up_others() {
    let server = Server::start(&["--sequences", "4"]);
    let mut victim = BufReader::new(server.chat(900, true));
    let mut goes_on = || {
        for _ in 0..6 {
            let mut line = String::new();
            assert!(victim.read_line(&mut line).unwrap() > 0, "it has ended");
            assert!(!line.contains("error"), "{line}");
        }
    };
    let prime = json!({ "type": "json_schema", "json_schema": { "schema": { "multipleOf": 999_983, "type": "integer" } } });
    let deep = (0..90).fold(json!({}), |inner, _| json!({ "properties": { "a": inner } }));
    let deep = json!({ "type": "json_schema", "json_schema": { "schema": deep } });
    let stops: Vec<String> = (0..16).map(|n| format!("{n:02}{}", "x".repeat(1022))).collect();
    let biases: serde_json::Map<String, Value> = (0..1024).map(|n| (n.to_string(), json!(-1))).collect();
    let tool = |n| json!({ "type": "function", "function": { "name": format!("f{n}"), "parameters": {} } });
    let tools: Vec<Value> = (0..128).map(tool).collect();
    let long = "once upon a time ".repeat(50_000);
    for (path, field, value) in [
        ("/v1/completions", "prompt", json!(vec!["Once"; 64])),
        ("/v1/completions", "prompt", json!(vec!["Once"; 65])),
        ("/v1/completions", "prompt", json!(long)),
        ("/v1/completions", "n", json!(16)),
        ("/v1/completions", "n", json!(4_000_000_000_u32)),
        ("/v1/completions", "max_tokens", json!(u64::MAX)),
        ("/v1/completions", "stop", json!(stops)),
        ("/v1/completions", "stop", json!("x".repeat(500_000))),
        ("/v1/completions", "logit_bias", json!(biases)),
        ("/v1/completions", "logprobs", json!(5)),
        ("/v1/completions", "seed", json!(i64::MAX)),
        ("/v1/completions", "top_k", json!(u32::MAX)),
        ("/v1/completions", "temperature", json!(1e308)),
        ("/v1/completions", "response_format", prime.clone()),
        ("/v1/completions", "response_format", deep),
        ("/v1/chat/completions", "messages", json!(vec![json!({ "role": "user", "content": "x" }); 4096])),
        ("/v1/chat/completions", "chat_template_kwargs", json!({ "a": vec![1; 100_000] })),
        ("/v1/chat/completions", "tools", json!(tools)),
        ("/v1/chat/completions", "top_logprobs", json!(20)),
        ("/v1/embeddings", "input", json!(vec!["Once upon a time"; 2048])),
    ] {
        let mut body = match path {
            "/v1/completions" => json!({ "prompt": "Once", "n": 16 }),
            "/v1/embeddings" => json!({}),
            _ => json!({ "messages": [{ "role": "user", "content": "x" }], "n": 16, "logprobs": true }),
        };
        if path != "/v1/embeddings" {
            (body["max_tokens"], body["ignore_eos"]) = (json!(100), json!(true));
        }
        body[field] = value;
        if field == "prompt" {
            body["n"] = json!(1);
        }
        // Whoever asks for it leaves, sooner or later.
        let _attack = server.send("POST", path, "", &body.to_string());
        goes_on();
    }
    // Work of one request does not keep others from being begun.
    let body = json!({ "prompt": "Once", "max_tokens": 5, "response_format": prime }).to_string();
    let slow: Vec<_> = (0..16).map(|_| server.send("POST", "/v1/completions", "", &body)).collect();
    let body = json!({ "prompt": "Once", "max_tokens": 5, "response_format": { "type": "json_object" } });
    let (status, text) = server.ask("POST", "/v1/completions", "", &body.to_string());
    assert_eq!(status, 200, "{text}");
    for mut client in slow {
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("\"too_complex\""), "{answer}");
        assert!(!answer.contains("panic") && !answer.contains("retry-after"), "{answer}");
    }
    let many = json!({ "prompt": vec!["Once"; 16], "n": 4, "max_tokens": 900, "ignore_eos": true });
    let _many = server.send("POST", "/v1/completions", "", &many.to_string());
    wait_for("they wait", || server.metric("mlxcel_requests_queued") >= 16.0);
    let (status, text) = server.ask("POST", "/v1/completions", "", r#"{"prompt":"Once","max_tokens":3}"#);
    assert_eq!(status, 200, "{text}");
    assert!(server.metric("mlxcel_requests_queued") >= 16.0, "it was answered before them");
    goes_on();
}

/// Stacks of this size, within a limit of the address space, let a program start as many threads and no more.
#[cfg(target_os = "linux")]
#[test]
fn a_thread_limit_ends_in_an_answer_or_one_line() {
    let (stack, without) = (4_u64 << 30, 2_u64 << 30);
    let (mut refused, mut answered) = (0, 0);
    for threads in 0..10 {
        let limit = (without + threads * stack) >> 10;
        let script = format!("ulimit -v {limit}; exec \"$0\" --backend portable --port 0 --threads 2");
        let mut child = Command::new("sh")
            .args(["-c", &script, env!("CARGO_BIN_EXE_server")])
            .env("RUST_MIN_STACK", stack.to_string())
            .env("MALLOC_ARENA_MAX", "1")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let Some(address) = line.trim().strip_prefix("http://") else {
            let output = child.wait_with_output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(output.status.code().is_some_and(|code| code != 0 && code != 101), "{threads}: {said}");
            assert!(said.trim().lines().count() == 1 && !said.contains("panick"), "{threads}: {said}");
            refused += 1;
            continue;
        };
        let server = Server { child, address: address.to_owned() };
        let format = json!({ "type": "json_object" });
        for format in [Value::Null, format] {
            let body = json!({ "prompt": "Once", "max_tokens": 3, "response_format": format });
            let (status, text) = server.ask("POST", "/v1/completions", "", &body.to_string());
            assert!([200, 429].contains(&status), "{threads}: {status} {text}");
        }
        assert_eq!(server.ask("POST", "/v1/embeddings", "", r#"{"input":"x"}"#).0, 200, "{threads}");
        answered += 1;
    }
    assert!(refused > 0 && answered > 0, "{refused} {answered}");
}

#[test]
fn requests_need_the_api_key() {
    let server = Server::start(&["--api-key", "secret"]);
    assert_eq!(server.get("/health").0, 200);
    for (headers, status) in [
        ("", 401),
        ("Authorization: Bearer secre\r\n", 401),
        ("Authorization: secret\r\n", 401),
        ("Authorization: Bearer secret\r\n", 200),
    ] {
        assert_eq!(server.ask("GET", "/v1/models", headers, "").0, status, "{headers:?}");
        assert_eq!(server.ask("GET", "/metrics", headers, "").0, status, "{headers:?}");
    }
}

#[test]
fn foreign_hosts_and_origins_are_rejected_before_routing() {
    let server = Server::start(&["--allow-host", "models.example", "--allow-origin", "https://page.example"]);
    let port = server.address.rsplit(':').next().unwrap();
    let ask = |method: &str, path: &str, headers: &str| {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        let head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        (answer[9..12].parse::<u16>().unwrap(), answer)
    };
    let own = format!("Host: localhost:{port}\r\nOrigin: http://localhost:{port}\r\n");
    for (headers, status) in [
        ("Host: localhost\r\n", 200),
        ("Host: LOCALHOST.:1\r\n", 200),
        ("Host: 127.0.0.1:1\r\n", 200),
        ("Host: [::1]:1\r\n", 200),
        ("Host: models.example\r\n", 200),
        (&own, 200),
        ("Host: evil.example\r\n", 403),
        ("Host: localhost.evil.example\r\n", 403),
        ("Host: 192.0.2.1\r\n", 403),
        ("Host: localhost\r\nOrigin: http://evil.example\r\n", 403),
        ("Host: localhost\r\nOrigin: http://localhost:1\r\n", 403),
        ("Host: localhost\r\nOrigin: null\r\n", 403),
        ("Host: localhost\r\nOrigin: https://page.example\r\n", 200),
        ("Host: localhost\r\nHost: evil.example\r\n", 400),
        ("Host: \r\n", 400),
        ("", 400),
    ] {
        for path in ["/health", "/", "/v1/models"] {
            assert_eq!(ask("GET", path, headers).0, status, "{path} {headers:?}");
        }
        let found = ask("GET", "/nothing", headers).0;
        assert_eq!(found, if status == 200 { 404 } else { status }, "{headers:?}");
    }
    let (status, _) = ask("GET", "http://evil.example/health", "Host: localhost\r\n");
    assert_eq!(status, 403, "the target's host counts too");
    let preflight = "Host: localhost\r\nOrigin: https://page.example\r\nAccess-Control-Request-Method: POST\r\n\
                     Access-Control-Request-Headers: x-a\r\n";
    let (status, answer) = ask("OPTIONS", "/v1/completions", preflight);
    assert_eq!(status, 204);
    for header in ["access-control-allow-origin: https://page.example", "access-control-allow-headers: x-a"] {
        assert!(answer.contains(header), "{answer}");
    }
}

#[test]
fn disconnected_clients_are_cancelled_and_a_full_queue_is_429() {
    let server = Server::start(&["--sequences", "1", "--queue", "1"]);
    let cancelled = "mlxcel_requests_total{event=\"cancelled\"}";
    let running = server.chat(900, true);
    wait_for("one runs", || server.metric("mlxcel_requests_running") == 1.0);
    let waiting = server.chat(900, false);
    wait_for("one waits", || server.metric("mlxcel_requests_queued") == 1.0);
    let mut refused = String::new();
    server.chat(5, false).read_to_string(&mut refused).unwrap();
    assert!(refused.starts_with("HTTP/1.1 429") && refused.contains("retry-after: 1"), "{refused}");
    drop((running, waiting));
    wait_for("both are cancelled", || server.metric(cancelled) == 2.0);
    let mut answer = String::new();
    server.chat(5, false).read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn connections_without_a_complete_request_time_out() {
    let server = Server::start(&["--max-connections", "1", "--idle-limit", "1"]);
    let silent = TcpStream::connect(&server.address).unwrap();
    assert_eq!(server.get("/health").0, 200);
    drop(silent);
    // An occasional byte is not a request either.
    let mut slow = TcpStream::connect(&server.address).unwrap();
    let writer = thread::spawn(move || {
        let request = format!("GET /health HTTP/1.1\r\nX-Long: {}", "x".repeat(10_000));
        let sent = request.bytes().take_while(|&byte| {
            thread::sleep(Duration::from_millis(50));
            slow.write_all(&[byte]).is_ok()
        });
        sent.count()
    });
    assert_eq!(server.get("/health").0, 200);
    assert!(writer.join().unwrap() < 10_000);
    // An answer that takes longer is waited for, read at once or as it comes.
    for stream in [false, true] {
        let mut answer = String::new();
        server.chat(900, stream).read_to_string(&mut answer).unwrap();
        let whole = if stream { "[DONE]" } else { "\"completion_tokens\":900" };
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(whole), "{answer}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn prompts_beyond_the_context_are_rejected_before_allocation() {
    let server = Server::start(&[]);
    let text = "a ".repeat(500_000);
    for (path, field) in [("/v1/embeddings", "input"), ("/v1/completions", "prompt")] {
        let (status, said) = server.ask("POST", path, "", &json!({ field: text }).to_string());
        assert!(status == 400 && said.contains("longer than the context"), "{status} {said}");
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let most: usize = most.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(most < 120 << 10, "{most} KiB for a body of {} bytes", text.len());
}

/// A mebibyte of small objects takes a hundred as parsed JSON, and as many clients send it as there are connections.
#[cfg(target_os = "linux")]
#[test]
fn large_request_bodies_are_parsed_one_at_a_time() {
    let server = Server::start(&[]);
    let objects = vec![r#"{"":0}"#; (1 << 20) / 7 - 20].join(",");
    let body = format!(r#"{{"messages":[],"chat_template_kwargs":{{"a":[{objects}]}}}}"#);
    assert!(body.len() < 1 << 20);
    let clients: Vec<_> = (0..24).map(|_| server.send("POST", "/v1/chat/completions", "", &body)).collect();
    for mut client in clients {
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 "), "{answer}");
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let most: usize = most.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(most < 1200 << 10, "{most} KiB for 24 bodies of {} bytes", body.len());
}

#[test]
fn a_signal_lets_running_requests_finish() {
    let mut server = Server::start(&[]);
    let mut stream = BufReader::new(server.chat(300, true));
    let mut line = String::new();
    while !line.contains("Pip") {
        line.clear();
        stream.read_line(&mut line).unwrap();
    }
    let process = rustix::process::Pid::from_child(&server.child);
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains(r#""finish_reason":"length""#) && rest.contains("[DONE]"), "{rest}");
    let status = server.child.wait().unwrap();
    assert!(status.success(), "{status}");
    assert!(TcpStream::connect(&server.address).is_err());
}

/// The message and the reason of the end, of a whole answer; and of the same one in a stream, whose deltas are put together.
fn answers(server: &Server, mut body: Value) -> [(Value, String); 2] {
    let (status, text) = server.ask("POST", "/v1/chat/completions", "", &body.to_string());
    assert_eq!(status, 200, "{text}");
    let answer: Value = serde_json::from_str(&text).unwrap();
    let choice = &answer["choices"][0];
    let whole = (choice["message"].clone(), choice["finish_reason"].as_str().unwrap().to_owned());
    body["stream"] = true.into();
    let (_, text) = server.ask("POST", "/v1/chat/completions", "", &body.to_string());
    let (mut content, mut calls, mut reason) = (String::new(), Vec::<Value>::new(), String::new());
    for line in text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|line| *line != "[DONE]") {
        let chunk: Value = serde_json::from_str(line).unwrap();
        let choice = &chunk["choices"][0];
        content.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        reason.push_str(choice["finish_reason"].as_str().unwrap_or_default());
        for delta in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let index = usize::try_from(delta["index"].as_u64().unwrap()).unwrap();
            if index == calls.len() {
                assert!(delta["id"].is_string() && delta["type"] == "function", "{delta}");
                calls.push(json!({ "name": delta["function"]["name"], "arguments": "" }));
            }
            let added = delta["function"]["arguments"].as_str().unwrap();
            calls[index]["arguments"] =
                format!("{}{added}", calls[index]["arguments"].as_str().unwrap()).into();
        }
    }
    [whole, (json!({ "content": content, "tool_calls": calls }), reason)]
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
    let [(whole, reason), (streamed, streamed_reason)] = answers(&server, ask(format));
    let fox: Value = serde_json::from_str(whole["content"].as_str().unwrap()).unwrap();
    assert!(fox["name"].is_string() && fox["legs"].as_u64().unwrap() <= 8, "{fox}");
    assert_eq!((reason.as_str(), streamed_reason.as_str()), ("stop", "stop"));
    assert_eq!(streamed["content"], whole["content"]);
    let [(object, reason), _] = answers(&server, ask(json!({ "type": "json_object" })));
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
        let [(whole, reason), (streamed, streamed_reason)] = answers(&server, ask(choice));
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
    let [(auto, _), (streamed, _)] = answers(&server, ask(json!("auto")));
    assert_eq!(auto["content"].as_str().unwrap_or_default(), streamed["content"]);
    let [(none, _), _] = answers(&server, ask(json!("none")));
    assert!(none["content"].is_string() && none["tool_calls"].is_null(), "{none}");
    for choice in [json!("sometimes"), json!({ "function": { "name": "other" } })] {
        let (status, text) = server.ask("POST", "/v1/chat/completions", "", &ask(choice).to_string());
        assert!(status == 400 && text.contains("tool_choice"), "{status}: {text}");
    }
}
