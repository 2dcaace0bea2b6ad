//! The spans of requests, as a subscriber sees them.
#![allow(clippy::unwrap_used)]

#[path = "router/harness.rs"]
#[allow(dead_code, reason = "it is that of other tests, too")]
mod harness;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mlxcel_server::{Limits, Server};
use serde_json::json;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use harness::{answer, ask, begin, engine, requests, streamed};

/// A span: its name, its parent, and its fields as text.
#[derive(Clone, Debug, Default)]
struct Seen {
    name: &'static str,
    parent: Option<u64>,
    fields: BTreeMap<&'static str, String>,
    is_closed: bool,
}

impl Visit for Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name(), value.to_owned());
    }
}

#[derive(Default)]
struct State {
    spans: Vec<Seen>,
    /// How many handles each has.
    handles: Vec<usize>,
    /// Those that each thread is in.
    entered: BTreeMap<String, Vec<u64>>,
}

/// Notes all spans.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<State>>);

fn thread() -> String {
    format!("{:?}", std::thread::current().id())
}

impl Subscriber for Spans {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span()
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut state = self.0.lock().unwrap();
        let current = || state.entered.get(&thread())?.last().copied();
        let mut seen = Seen { name: span.metadata().name(), parent: current(), ..Seen::default() };
        span.record(&mut seen);
        state.spans.push(seen);
        state.handles.push(1);
        Id::from_u64(state.spans.len() as u64)
    }
    fn record(&self, span: &Id, values: &Record<'_>) {
        values.record(&mut self.0.lock().unwrap().spans[span.into_u64() as usize - 1]);
    }
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, span: &Id) {
        self.0.lock().unwrap().entered.entry(thread()).or_default().push(span.into_u64());
    }
    fn exit(&self, _: &Id) {
        self.0.lock().unwrap().entered.entry(thread()).or_default().pop();
    }
    fn clone_span(&self, span: &Id) -> Id {
        self.0.lock().unwrap().handles[span.into_u64() as usize - 1] += 1;
        span.clone()
    }
    fn try_close(&self, span: Id) -> bool {
        let (mut state, index) = (self.0.lock().unwrap(), span.into_u64() as usize - 1);
        state.handles[index] -= 1;
        state.spans[index].is_closed = state.handles[index] == 0;
        state.spans[index].is_closed
    }
}

impl Spans {
    /// The newest span of a request once it is closed, and its number.
    async fn newest(&self) -> (u64, BTreeMap<&'static str, String>) {
        loop {
            let spans = self.0.lock().unwrap().spans.clone();
            let newest = spans.iter().enumerate().rev().find(|(_, span)| span.name == "gen_ai").unwrap();
            if newest.1.is_closed {
                return (newest.0 as u64 + 1, newest.1.fields.clone());
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

/// One test, as the subscriber is that of all threads.
#[tokio::test]
async fn requests_have_spans_in_the_words_of_opentelemetry() {
    let spans = Spans::default();
    tracing::subscriber::set_global_default(spans.clone()).unwrap();
    let router = Server::new("pip", engine()).router().unwrap();
    let expect = |fields: &BTreeMap<&'static str, String>, expected: &[(&str, &str)]| {
        for (name, value) in expected {
            assert_eq!(fields.get(name).map(String::as_str), Some(*value), "{name}: {fields:?}");
        }
    };

    for (path, body) in requests(4) {
        let operation = if path == "/v1/completions" { "text_completion" } else { "chat" };
        for mut body in [body.clone(), streamed(body)] {
            body["temperature"] = 0.into();
            assert_eq!(ask(&router, path, Some(body)).await.0, 200);
            let (number, fields) = spans.newest().await;
            let name = format!("{operation} pip");
            expect(
                &fields,
                &[
                    ("otel.name", &name),
                    ("otel.kind", "server"),
                    ("gen_ai.operation.name", operation),
                    ("gen_ai.provider.name", "mlxcel"),
                    ("gen_ai.request.model", "pip"),
                    ("gen_ai.response.model", "pip"),
                    ("gen_ai.request.max_tokens", "4"),
                    ("gen_ai.request.temperature", "0.0"),
                    ("gen_ai.usage.output_tokens", "4"),
                    ("gen_ai.response.finish_reasons", "[\"length\"]"),
                ],
            );
            assert!(!fields.contains_key("error.type"), "{fields:?}");
            let spans = spans.0.lock().unwrap().spans.clone();
            let below = spans.iter().filter(|span| span.parent == Some(number));
            assert_eq!(below.map(|span| span.name).collect::<Vec<_>>(), ["request"], "{path}");
        }
    }

    let body = json!({
        "prompt": ["Once", "Once"], "n": 2, "max_tokens": 200, "temperature": 0.7, "top_p": 0.9, "top_k": 40, "seed": 7, "stop": ["."],
        "frequency_penalty": 0.5, "presence_penalty": 0.25,
    });
    let usage = &answer(&router, "/v1/completions", Some(body)).await["usage"];
    let (_, fields) = spans.newest().await;
    expect(
        &fields,
        &[
            ("gen_ai.request.choice.count", "2"),
            ("gen_ai.request.temperature", "0.7"),
            ("gen_ai.request.top_p", "0.9"),
            ("gen_ai.request.top_k", "40"),
            ("gen_ai.request.seed", "7"),
            ("gen_ai.request.stop_sequences", "[\".\"]"),
            ("gen_ai.request.frequency_penalty", "0.5"),
            ("gen_ai.request.presence_penalty", "0.25"),
            ("gen_ai.response.finish_reasons", "[\"stop\", \"stop\", \"stop\", \"stop\"]"),
            ("gen_ai.usage.input_tokens", &usage["prompt_tokens"].to_string()),
            ("gen_ai.usage.output_tokens", &usage["completion_tokens"].to_string()),
        ],
    );

    let body = json!({ "input": ["a fox", "a bear"] });
    let usage = &answer(&router, "/v1/embeddings", Some(body)).await["usage"];
    let (_, fields) = spans.newest().await;
    assert_eq!(&*fields["gen_ai.operation.name"], "embeddings");
    expect(&fields, &[("gen_ai.usage.input_tokens", &usage["prompt_tokens"].to_string())]);
    assert!(!fields.contains_key("gen_ai.usage.output_tokens"), "{fields:?}");

    // A client that leaves, and an answer that is cut.
    let [(path, body), ..] = requests(900);
    drop(begin(&router, path, Some(streamed(body))).await);
    let (_, fields) = spans.newest().await;
    expect(&fields, &[("gen_ai.response.finish_reasons", "[\"cancelled\"]")]);
    let mut limits = Limits::default();
    limits.time = Duration::ZERO;
    let router = Server::new("pip", engine()).with_limits(limits).router().unwrap();
    for (path, body) in requests(5) {
        assert_eq!(ask(&router, path, Some(body)).await.0, 504);
        let (_, fields) = spans.newest().await;
        expect(&fields, &[("error.type", "time_limit"), ("otel.status_code", "ERROR")]);
    }
}
