//! Figures for Prometheus, in its text format (version 0.0.4).

use std::fmt::Write;
use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::header;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use mlxcel_session::EngineStats;

use crate::served::{Models, ServedModel};

/// Counts a request when its answer begins.
pub(crate) async fn count(State(models): State<Arc<Models>>, request: Request, next: Next) -> Response {
    // Paths that are not ours would be as many as clients think of.
    let path = request.extensions().get::<MatchedPath>().map_or("other", MatchedPath::as_str).to_owned();
    let response = next.run(request).await;
    models.shared.responses.add(path, response.status().as_u16());
    response
}

pub(crate) async fn show(State(models): State<Arc<Models>>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text(&models)).into_response()
}

/// A figure of a model: its name, meaning and type, and its value, if the model has it.
type Figure = (&'static str, &'static str, &'static str, Option<f64>);

fn figures(app: &ServedModel, stats: &EngineStats) -> [Figure; 20] {
    let drafts = |tokens: u64| app.speculation.as_ref().map(|_| tokens as f64);
    let prefixes = app.engine.model().prefix_cache().map(|cache| cache.stats());
    let prefixes = prefixes.as_ref();
    let paused = "Running requests that are paused because their readers are slow.";
    let usage = "Tokens that open sequences hold, as a fraction of the most that they can hold.";
    [
        ("requests_queued", "Queued requests.", "gauge", Some(stats.queued as f64)),
        ("requests_running", "Running requests.", "gauge", Some(stats.running as f64)),
        ("requests_paused", paused, "gauge", Some(stats.paused as f64)),
        ("kv_cache_bytes", "Bytes of the open sequences.", "gauge", Some(stats.kv_bytes as f64)),
        ("kv_cache_tokens", "Tokens that open sequences hold.", "gauge", Some(stats.kv_tokens as f64)),
        ("kv_cache_usage_ratio", usage, "gauge", Some(stats.kv_usage())),
        ("prompt_tokens_total", "Tokens of prompts.", "counter", Some(stats.prompt_tokens as f64)),
        (
            "prompt_tokens_reused_total",
            "Prompt tokens reused from prefixes.",
            "counter",
            Some(stats.reused_tokens as f64),
        ),
        ("generated_tokens_total", "Generated tokens.", "counter", Some(stats.generated_tokens as f64)),
        (
            "drafted_tokens_total",
            "Draft tokens that the model verified.",
            "counter",
            drafts(stats.drafted_tokens),
        ),
        (
            "accepted_tokens_total",
            "Draft tokens that were accepted.",
            "counter",
            drafts(stats.accepted_tokens),
        ),
        ("computed_tokens_total", "Computed tokens.", "counter", Some(stats.computed_tokens as f64)),
        ("steps_total", "Steps.", "counter", Some(stats.steps as f64)),
        ("passes_total", "Passes over the weights.", "counter", Some(stats.passes as f64)),
        ("step_seconds_total", "Time in steps.", "counter", Some(stats.step_time.as_secs_f64())),
        (
            "compile_seconds_total",
            "Time spent compiling during steps.",
            "counter",
            Some(stats.compile_time.as_secs_f64()),
        ),
        (
            "longest_wait_seconds",
            "The longest wait for a sequence.",
            "gauge",
            Some(stats.longest_wait.as_secs_f64()),
        ),
        (
            "prefix_cache_bytes",
            "Bytes of cached prefixes.",
            "gauge",
            prefixes.map(|stats| stats.bytes as f64),
        ),
        (
            "prefix_cache_hits_total",
            "Prompts that matched a cached prefix.",
            "counter",
            prefixes.map(|stats| stats.hits as f64),
        ),
        (
            "prefix_cache_misses_total",
            "Prompts that matched no cached prefix.",
            "counter",
            prefixes.map(|stats| stats.misses as f64),
        ),
    ]
}

/// The figures of requests with adapters.
const ADAPTER_FIGURES: [(&str, &str); 4] = [
    ("adapter_requests_total", "Requests with an adapter that began."),
    ("adapter_prompt_tokens_total", "Tokens of prompts with an adapter."),
    ("adapter_prompt_tokens_reused_total", "Prompt tokens with an adapter reused from prefixes."),
    ("adapter_generated_tokens_total", "Tokens generated with an adapter."),
];

/// What became of requests.
fn events(stats: &EngineStats) -> [(&'static str, u64); 8] {
    [
        ("submitted", stats.submitted),
        ("refused", stats.refused),
        ("finished", stats.finished),
        ("cancelled", stats.cancelled),
        ("timed_out", stats.timed_out),
        ("failed", stats.failed),
        ("preempted", stats.preempted),
        ("retried", stats.retried),
    ]
}

fn text(models: &Models) -> String {
    let mut page = Page(String::new());
    let stats: Vec<_> = models.served.iter().map(|app| (app, app.engine.stats())).collect();
    let figures: Vec<_> = stats.iter().map(|(app, stats)| (&app.name, figures(app, stats))).collect();
    for index in 0..figures.first().map_or(0, |(_, own)| own.len()) {
        for (place, (model, own)) in figures.iter().enumerate() {
            let (name, help, kind, value) = own[index];
            if place == 0 {
                page.head(name, help, kind);
            }
            if let Some(value) = value {
                page.value(name, &[("model", model)], value);
            }
        }
    }
    page.head("requests_total", "Requests by outcome.", "counter");
    for (app, stats) in &stats {
        for (event, value) in events(stats) {
            page.value("requests_total", &[("model", &app.name), ("event", event)], value as f64);
        }
    }
    let by_adapter: Vec<_> = stats.iter().map(|(app, _)| (&app.name, app.adapter_figures())).collect();
    for (index, (name, help)) in ADAPTER_FIGURES.iter().enumerate() {
        if by_adapter.iter().any(|(_, figures)| !figures.is_empty()) {
            page.head(name, help, "counter");
        }
        for (model, (adapter, figures)) in
            by_adapter.iter().flat_map(|(model, figures)| figures.iter().map(move |own| (model, own)))
        {
            page.value(name, &[("model", model), ("adapter", adapter)], figures[index] as f64);
        }
    }
    page.head("http_requests_total", "Responses by path and status.", "counter");
    for (path, status, value) in models.shared.responses.all() {
        let labels = [("path", path.as_str()), ("status", &status.to_string())];
        page.value("http_requests_total", &labels, value as f64);
    }
    page.0
}

struct Page(String);

impl Page {
    fn head(&mut self, name: &str, help: &str, kind: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP mlxcel_{name} {help}\n# TYPE mlxcel_{name} {kind}");
    }

    fn value(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let escaped = |value: &str| value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
        let labels: Vec<_> =
            labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
        let _ = writeln!(self.0, "mlxcel_{name}{{{}}} {value}", labels.join(","));
    }
}
