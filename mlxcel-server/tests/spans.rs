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
use tracing::Subscriber;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use harness::{answer, ask, begin, engine, requests, streamed};

/// A span: its name, its parent, and its fields as text.
#[derive(Clone, Debug, Default)]
struct Seen {
    id: Option<Id>,
    name: &'static str,
    parent: Option<Id>,
    fields: BTreeMap<&'static str, String>,
    is_closed: bool,
}

impl Seen {
    fn expect(&self, fields: &[(&str, &str)]) {
        for (name, value) in fields {
            assert_eq!(self.fields.get(name).map(String::as_str), Some(*value), "{name}: {self:?}");
        }
    }
}

impl Visit for Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name(), value.to_owned());
    }
}

/// Notes all spans, in the order in which they began.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<Seen>>>);

impl<S: Subscriber> Layer<S> for Spans {
    fn on_new_span(&self, span: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let parent = context.current_span().id().cloned();
        let mut seen = Seen { id: Some(id.clone()), name: span.metadata().name(), parent, ..Seen::default() };
        span.record(&mut seen);
        self.0.lock().unwrap().push(seen);
    }
    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        self.change(id, |span| values.record(span));
    }
    fn on_close(&self, id: Id, _: Context<'_, S>) {
        self.change(&id, |span| span.is_closed = true);
    }
}

impl Spans {
    fn change(&self, id: &Id, change: impl FnOnce(&mut Seen)) {
        change(self.0.lock().unwrap().iter_mut().rfind(|span| span.id.as_ref() == Some(id)).unwrap());
    }

    /// The newest span of a request once it is closed.
    async fn newest(&self) -> Seen {
        loop {
            let newest = self.0.lock().unwrap().iter().rfind(|span| span.name == "gen_ai").cloned().unwrap();
            if newest.is_closed {
                return newest;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

/// One test, as the subscriber is that of all threads.
#[tokio::test]
async fn requests_have_spans_in_the_words_of_opentelemetry() {
    let spans = Spans::default();
    tracing_subscriber::registry().with(spans.clone()).init();
    let router = Server::new("pip", engine()).router().unwrap();

    for (path, body) in requests(4) {
        let operation = if path == "/v1/completions" { "text_completion" } else { "chat" };
        for mut body in [body.clone(), streamed(body)] {
            body["temperature"] = 0.into();
            assert_eq!(ask(&router, path, Some(body)).await.0, 200);
            let seen = spans.newest().await;
            let name = format!("{operation} pip");
            seen.expect(&[
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
            ]);
            assert!(!seen.fields.contains_key("error.type"), "{seen:?}");
            let spans = spans.0.lock().unwrap().clone();
            let below = spans.iter().filter(|span| span.parent == seen.id);
            assert_eq!(below.map(|span| span.name).collect::<Vec<_>>(), ["request"], "{path}");
        }
    }

    let body = json!({
        "prompt": ["Once", "Once"], "n": 2, "max_tokens": 200, "temperature": 0.7, "top_p": 0.9, "top_k": 40, "seed": 7, "stop": ["."],
        "frequency_penalty": 0.5, "presence_penalty": 0.25,
    });
    let usage = &answer(&router, "/v1/completions", Some(body)).await["usage"];
    let seen = spans.newest().await;
    seen.expect(&[
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
    ]);

    let body = json!({ "input": ["a fox", "a bear"] });
    let usage = &answer(&router, "/v1/embeddings", Some(body)).await["usage"];
    let seen = spans.newest().await;
    let tokens = usage["prompt_tokens"].to_string();
    seen.expect(&[("gen_ai.operation.name", "embeddings"), ("gen_ai.usage.input_tokens", &tokens)]);
    assert!(!seen.fields.contains_key("gen_ai.usage.output_tokens"), "{seen:?}");

    // A client that leaves, and an answer that is cut.
    let [(path, body), ..] = requests(900);
    drop(begin(&router, path, Some(streamed(body))).await);
    let seen = spans.newest().await;
    seen.expect(&[("gen_ai.response.finish_reasons", "[\"cancelled\"]")]);
    let mut limits = Limits::default();
    limits.time = Duration::ZERO;
    let router = Server::new("pip", engine()).with_limits(limits).router().unwrap();
    for (path, body) in requests(5) {
        assert_eq!(ask(&router, path, Some(body)).await.0, 504);
        let seen = spans.newest().await;
        seen.expect(&[("error.type", "time_limit"), ("otel.status_code", "ERROR")]);
    }
}
