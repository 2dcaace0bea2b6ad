//! Which requests are answered, and which are refused.

use std::io::Write;
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::server::harness::{Server, whole};

#[test]
fn invalid_requests_are_rejected_with_a_reason() {
    let server = Server::start(&["--max-body", "2000", "--name", "pip"]);
    assert_eq!(server.get("/health"), (200, r#"{"status":"ok"}"#.to_owned()));
    assert_eq!(server.get("/v1/models/other").0, 404);
    let post = |body: &str| server.ask("POST", "/v1/completions", "", body);
    for (body, status, said) in [
        ("{", 400, "EOF"),
        (r#"{"prompt":"x","temperature":-1}"#, 400, "temperature"),
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
    let answer = whole(stream);
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
            let (status, answer) = server.post(path, &body);
            (status, answer["error"]["param"].clone(), answer["error"]["code"].clone())
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
fn requests_have_ids() {
    let server = Server::start(&[]);
    let id = |headers: &str| {
        let answer = whole(server.send("GET", "/nothing", headers, ""));
        let line = answer.lines().find_map(|line| line.strip_prefix("x-request-id: "));
        line.unwrap().to_owned()
    };
    assert_eq!(id("X-Request-Id: mine\r\n"), "mine");
    assert_ne!(id(""), id(""));
}

#[test]
fn the_api_describes_itself() {
    let server = Server::start(&[]);
    let (status, text) = server.get("/openapi.json");
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &document["openapi"]), (200, &json!("3.1.0")));
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let path = path.replace("{name}", "storyteller");
            let (status, text) = server.ask(&method.to_uppercase(), &path, "", "{}");
            assert_eq!(status, if method == "post" { 400 } else { 200 }, "{path}: {text}");
        }
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
        let answer = whole(stream);
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
fn the_server_describes_its_models() {
    let server = Server::start(&["--name", "pip", "--max-tokens", "50"]);
    let (status, text) = server.get("/server_info");
    let info: Value = serde_json::from_str(&text).unwrap();
    let model = &info["models"][0];
    assert_eq!((status, &model["name"], &model["backend"]), (200, &json!("pip"), &json!("portable")));
    assert_eq!((&model["max_tokens"], &model["max_model_len"]), (&json!(50), &json!(1024)));
}
