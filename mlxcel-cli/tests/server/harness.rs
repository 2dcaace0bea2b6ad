//! A running server, and how it is spoken to.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// A running server, ended with the test.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) address: String,
}

impl Server {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mlxcel"));
        command.args(["serve", "--backend", "portable", "--port", "0"]).args(arguments);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("http://").unwrap().to_owned();
        Self { child, address }
    }

    /// Sends a request, and leaves the answer to be read.
    pub(crate) fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> TcpStream {
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
    pub(crate) fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> (u16, String) {
        let mut answer = Vec::new();
        let _ = self.send(method, path, headers, body).read_to_end(&mut answer);
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// The status and the object of the answer to a POST of `body`; its text if that is no object.
    pub(crate) fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let (status, text) = self.ask("POST", path, "", &body.to_string());
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    /// The object of an answer with status 200.
    #[track_caller]
    pub(crate) fn answer(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.post(path, body);
        assert_eq!(status, 200, "{answer}");
        answer
    }

    /// The events of a streamed answer to `body`, and its text.
    pub(crate) fn streamed(&self, path: &str, body: &Value) -> (Vec<Value>, String) {
        let mut body = body.clone();
        body["stream"] = true.into();
        let (_, text) = self.ask("POST", path, "", &body.to_string());
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        let events = data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap());
        (events.collect(), text)
    }

    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        self.ask("GET", path, "", "")
    }

    pub(crate) fn chat(&self, tokens: usize, stream: bool) -> TcpStream {
        let question = json!([{ "role": "user", "content": "Tell me a story about a fox named Pip." }]);
        let body = json!({
            "messages": question, "temperature": 0, "max_tokens": tokens, "ignore_eos": true, "stream": stream,
        });
        self.send("POST", "/v1/chat/completions", "", &body.to_string())
    }

    /// The value of a figure of the metrics.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let (_, text) = self.get("/metrics");
        // Figures have the name of the only model.
        let text = text.replace("{model=\"storyteller\"}", "").replace("{model=\"storyteller\",", "{");
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

pub(crate) fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// All of an answer with its head.
pub(crate) fn whole(mut stream: impl Read) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The message and the reason of the end, of a whole answer; and of the same one in a stream, whose deltas
/// are put together.
pub(crate) fn answers(server: &Server, body: &Value) -> [(Value, String); 2] {
    let answer = server.answer("/v1/chat/completions", body);
    let choice = &answer["choices"][0];
    let whole = (choice["message"].clone(), choice["finish_reason"].as_str().unwrap().to_owned());
    let (mut content, mut calls, mut reason) = (String::new(), Vec::<Value>::new(), String::new());
    for chunk in server.streamed("/v1/chat/completions", body).0 {
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
