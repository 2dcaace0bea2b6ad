//! The server before its model is loaded.

use std::net::TcpListener;
use std::process::Stdio;
use std::thread;

use serde_json::Value;

use crate::program::{Run, mlxcel};
use crate::server::harness::{Server, wait_for};

/// A hub that accepts connections and never answers keeps the model from being loaded.
#[test]
fn a_loading_server_lives_and_is_not_ready_and_ends_in_order() {
    let hub = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", hub.local_addr().unwrap());
    thread::spawn(move || {
        let connections: Vec<_> = hub.incoming().take(100).collect();
        drop(connections);
    });
    let home = tempfile::tempdir().unwrap();
    // The port is free again when the server listens on it.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let port = address.port().to_string();
    let mut command = mlxcel(&["serve", "--backend", "portable", "--model", "org/name", "--port", &port]);
    for variable in ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN"] {
        command.env_remove(variable);
    }
    command.env("HF_HOME", home.path()).env("HF_ENDPOINT", endpoint).env("NO_PROXY", "*");
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut server = Server { child, address: address.to_string() };
    wait_for("it listens", || std::net::TcpStream::connect(address).is_ok());

    assert_eq!(server.get("/health/live").0, 200);
    let (status, text) = server.get("/health/ready");
    let said: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &said["status"]), (503, &"loading".into()));
    let (status, text) = server.ask("POST", "/v1/completions", "", r#"{"prompt":"Once"}"#);
    assert!(status == 503 && text.contains("\"loading\""), "{status} {text}");

    let pid = rustix::process::Pid::from_child(&server.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(server.child.wait().unwrap().success());
}

#[test]
fn an_empty_api_key_is_an_error() {
    for (arguments, variable) in [(&["--api-key", ""][..], "secret"), (&[][..], "")] {
        let mut command = mlxcel(&["serve", "--backend", "portable", "--port", "0"]);
        Run::of(command.args(arguments).env("MLXCEL_API_KEY", variable)).refused(2, &[]);
    }
}

/// What a server says that ends with status 2 before it listens.
#[track_caller]
fn refusal(arguments: &[&str], words: &[&str]) -> String {
    Run::of(mlxcel(&["serve", "--backend", "portable"]).args(arguments)).refused(2, words)
}

#[cfg(target_os = "linux")]
#[test]
fn a_limit_of_open_files_is_an_error_with_the_way_out() {
    for files in 4..9 {
        let script = format!("ulimit -n {files}; exec \"$0\" serve --backend portable --port 0");
        let mut shell = std::process::Command::new("sh");
        Run::of(shell.args(["-c", &script, env!("CARGO_BIN_EXE_mlxcel")])).refused(1, &["ulimit -n"]);
    }
}

#[test]
fn options_out_of_range_are_refused_by_name() {
    for (option, value) in [
        ("--max-tokens", "0"),
        ("--max-connections", "0"),
        ("--time-limit", "0"),
        ("--name", ""),
        ("--host", "example.org"),
        ("--allow-host", "https://example.org"),
        ("--allow-origin", "example.org"),
        ("--port", "-1"),
    ] {
        refusal(&[option, value], &[option]);
    }
}

#[test]
fn an_address_that_cannot_be_listened_on_is_reported_with_the_way_out() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    refusal(&["--host", "localhost", "--port", &port], &[&format!("127.0.0.1:{port}"), "--port"]);
    // Addresses for documentation are of no machine.
    let said = refusal(&["--host", "192.0.2.1", "--port", "0"], &["--host"]);
    assert!(!said.contains("--port"), "{said}");
}
