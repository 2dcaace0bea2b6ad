//! What clients can take, and what becomes of those that want more.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::server::harness::{Server, wait_for, whole};

/// Each field of a request at its largest, or at what is most work. A stream of somebody else goes on beside
/// it.
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
    for client in slow {
        let answer = whole(client);
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
        let script = format!("ulimit -v {limit}; exec \"$0\" serve --backend portable --port 0 --threads 2");
        let mut child = Command::new("sh")
            .args(["-c", &script, env!("CARGO_BIN_EXE_mlxcel")])
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
fn disconnected_clients_are_cancelled_and_a_full_queue_is_429() {
    let server = Server::start(&["--sequences", "1", "--queue", "1"]);
    let cancelled = "mlxcel_requests_total{event=\"cancelled\"}";
    let running = server.chat(900, true);
    wait_for("one runs", || server.metric("mlxcel_requests_running") == 1.0);
    let waiting = server.chat(900, false);
    wait_for("one waits", || server.metric("mlxcel_requests_queued") == 1.0);
    let refused = whole(server.chat(5, false));
    assert!(refused.starts_with("HTTP/1.1 429") && refused.contains("retry-after: 1"), "{refused}");
    drop((running, waiting));
    wait_for("both are cancelled", || server.metric(cancelled) == 2.0);
    let answer = whole(server.chat(5, false));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn connections_without_a_complete_request_time_out() {
    let server = Server::start(&["--idle-limit", "1"]);
    let mut silent = TcpStream::connect(&server.address).unwrap();
    assert_eq!(silent.read(&mut [0]).unwrap_or(0), 0);
    // An occasional byte is not a request either.
    let mut slow = TcpStream::connect(&server.address).unwrap();
    let request = format!("GET /health HTTP/1.1\r\nX-Long: {}", "x".repeat(1_000));
    let sent = request.bytes().take_while(|&byte| {
        thread::sleep(Duration::from_millis(50));
        slow.write_all(&[byte]).is_ok()
    });
    assert!(sent.count() < 1_000);
    // An answer that takes longer is waited for, read at once or as it comes.
    for stream in [false, true] {
        let answer = whole(server.chat(900, stream));
        let end = if stream { "[DONE]" } else { "\"completion_tokens\":900" };
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(end), "{answer}");
    }
}

/// 413 comes at once, and not when the body has not come for long enough.
#[test]
fn a_body_that_is_announced_too_long_is_not_waited_for() {
    let server = Server::start(&[]);
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let head = "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    write!(stream, "{head}Content-Length: 99999999999\r\n\r\n{{").unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
}

/// A request that leaves its connection open, until its answer has come.
fn ask_for_health(stream: &mut TcpStream) -> bool {
    let asked = stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let mut answer = [0; 4096];
    let read = asked.and_then(|()| stream.read(&mut answer)).unwrap_or(0);
    answer[..read].starts_with(b"HTTP/1.1 200")
}

#[test]
fn a_further_connection_ends_the_one_that_was_idle_the_longest() {
    let server = Server::start(&["--max-connections", "4", "--idle-limit", "600"]);
    let body = r#"{"prompt":"Once"}"#;
    let mut busy = TcpStream::connect(&server.address).unwrap();
    let head = "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    write!(busy, "{head}Content-Length: {}\r\n\r\n", body.len()).unwrap();
    let mut connections = [(); 3].map(|()| {
        let stream = TcpStream::connect(&server.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    });
    for stream in &mut connections {
        assert!(ask_for_health(stream));
    }
    // The first to have a request was not the last one.
    assert!(ask_for_health(&mut connections[0]));
    assert_eq!(server.get("/health").0, 200);
    assert_eq!(connections.each_mut().map(ask_for_health), [true, false, true]);
    busy.write_all(body.as_bytes()).unwrap();
    let mut answer = String::new();
    BufReader::new(busy).read_line(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn a_further_connection_waits_while_all_have_a_request() {
    let server = Server::start(&["--max-connections", "2", "--idle-limit", "600"]);
    let running = [false, true].map(|stream| server.chat(900, stream));
    assert_eq!(server.get("/health").0, 200);
    for (stream, end) in running.into_iter().zip(["\"completion_tokens\":900", "[DONE]"]) {
        let answer = whole(stream);
        assert!(answer.contains(end), "{answer}");
    }
}

/// The most KiB that the server has had in memory.
#[cfg(target_os = "linux")]
fn most_memory(server: &Server) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    most.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
#[cfg(target_os = "linux")]
fn prompts_beyond_the_context_are_rejected_before_allocation() {
    let server = Server::start(&[]);
    let text = "a ".repeat(500_000);
    for (path, field) in [("/v1/embeddings", "input"), ("/v1/completions", "prompt")] {
        let (status, said) = server.post(path, &json!({ field: text }));
        assert!(status == 400 && said.to_string().contains("longer than the context"), "{status} {said}");
    }
    let most = most_memory(&server);
    assert!(most < 120 << 10, "{most} KiB for a body of {} bytes", text.len());
}

/// A mebibyte of small objects takes a hundred as parsed JSON, and as many clients send it as there are
/// connections.
#[cfg(target_os = "linux")]
#[test]
fn large_request_bodies_are_parsed_one_at_a_time() {
    let server = Server::start(&[]);
    let objects = vec![r#"{"":0}"#; (1 << 20) / 7 - 20].join(",");
    let body = format!(r#"{{"messages":[],"chat_template_kwargs":{{"a":[{objects}]}}}}"#);
    assert!(body.len() < 1 << 20);
    let clients: Vec<_> = (0..24).map(|_| server.send("POST", "/v1/chat/completions", "", &body)).collect();
    for client in clients {
        let answer = whole(client);
        assert!(answer.starts_with("HTTP/1.1 "), "{answer}");
    }
    let most = most_memory(&server);
    assert!(most < 1200 << 10, "{most} KiB for 24 bodies of {} bytes", body.len());
}
