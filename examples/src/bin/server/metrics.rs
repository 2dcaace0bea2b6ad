//! Figures for Prometheus, in its text format (version 0.0.4).

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::{MatchedPath, Request, State};
use axum::http::header;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::app::App;

/// How many requests were answered, by path and status.
#[derive(Default)]
pub(crate) struct Served(Mutex<BTreeMap<(String, u16), u64>>);

/// Counts a request when its answer begins.
pub(crate) async fn count(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    // Paths that are not ours would be as many as clients think of.
    let path = request.extensions().get::<MatchedPath>().map_or("other", MatchedPath::as_str).to_owned();
    let response = next.run(request).await;
    let key = (path, response.status().as_u16());
    *app.served.0.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default() += 1;
    response
}

/// All figures.
pub(crate) async fn show(State(app): State<Arc<App>>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text(&app)).into_response()
}

fn text(app: &App) -> String {
    let stats = app.engine.stats();
    let mut page = Page(String::new());
    page.gauge("requests_queued", "Queued requests.", stats.queued as f64);
    page.gauge("requests_running", "Running requests.", stats.running as f64);
    page.gauge(
        "requests_paused",
        "Running requests that are paused because their readers are slow.",
        stats.paused as f64,
    );
    page.gauge("kv_cache_bytes", "Bytes of the open sequences.", stats.kv_bytes as f64);
    let requests = [
        ("submitted", stats.submitted),
        ("refused", stats.refused),
        ("finished", stats.finished),
        ("cancelled", stats.cancelled),
        ("timed_out", stats.timed_out),
        ("failed", stats.failed),
        ("preempted", stats.preempted),
        ("retried", stats.retried),
    ];
    page.head("requests_total", "Requests by outcome.", "counter");
    for (what, value) in requests {
        page.value("requests_total", &format!("{{event=\"{what}\"}}"), value as f64);
    }
    page.counter("prompt_tokens_total", "Tokens of prompts.", stats.prompt_tokens as f64);
    page.counter(
        "prompt_tokens_reused_total",
        "Prompt tokens reused from prefixes.",
        stats.reused_tokens as f64,
    );
    page.counter("generated_tokens_total", "Generated tokens.", stats.generated_tokens as f64);
    page.counter("computed_tokens_total", "Computed tokens.", stats.computed_tokens as f64);
    page.counter("steps_total", "Steps.", stats.steps as f64);
    page.counter("passes_total", "Passes over the weights.", stats.passes as f64);
    page.counter("step_seconds_total", "Time in steps.", stats.step_time.as_secs_f64());
    page.counter(
        "compile_seconds_total",
        "Time spent compiling during steps.",
        stats.compile_time.as_secs_f64(),
    );
    page.gauge("longest_wait_seconds", "The longest wait for a sequence.", stats.longest_wait.as_secs_f64());
    if let Some(cache) = app.engine.model().prefix_cache() {
        let stats = cache.stats();
        page.gauge("prefix_cache_bytes", "Bytes of cached prefixes.", stats.bytes as f64);
        page.counter("prefix_cache_hits_total", "Prompts that matched a cached prefix.", stats.hits as f64);
        page.counter(
            "prefix_cache_misses_total",
            "Prompts that matched no cached prefix.",
            stats.misses as f64,
        );
    }
    page.head("http_requests_total", "Responses by path and status.", "counter");
    for ((path, status), &value) in &*app.served.0.lock().unwrap_or_else(PoisonError::into_inner) {
        page.value("http_requests_total", &format!("{{path=\"{path}\",status=\"{status}\"}}"), value as f64);
    }
    page.0
}

struct Page(String);

impl Page {
    fn head(&mut self, name: &str, help: &str, kind: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP mlxcel_{name} {help}\n# TYPE mlxcel_{name} {kind}");
    }

    fn value(&mut self, name: &str, labels: &str, value: f64) {
        let _ = writeln!(self.0, "mlxcel_{name}{labels} {value}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, help, "gauge");
        self.value(name, "", value);
    }

    fn counter(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, help, "counter");
        self.value(name, "", value);
    }
}
