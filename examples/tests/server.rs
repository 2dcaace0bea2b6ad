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
fn wrong_requests_are_refused_and_say_why() {
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
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.write_all(plain.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 415"), "{answer}");
}

#[test]
fn a_key_lets_in_who_has_it() {
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
fn who_leaves_is_cancelled_and_a_full_queue_says_so() {
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
fn a_signal_lets_running_answers_end() {
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
