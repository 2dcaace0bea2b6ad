//! Spans of requests, with the attributes of OpenTelemetry's conventions for generative AI.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mlxcel_session::{AsyncRequestStream, Error, FinishReason, Options, Result, SampledToken};
use tracing::Span;
use tracing::field::Empty;

/// A chat, in the words of whatever API.
pub(crate) const CHAT: &str = "chat";
/// The continuation of prompts.
pub(crate) const TEXT_COMPLETION: &str = "text_completion";
/// Vectors of texts.
pub(crate) const EMBEDDINGS: &str = "embeddings";

/// The span of a request that reached an engine. It ends with the last of its answers, and then has their
/// usage.
///
/// Its parent is the span that is current when the request is handled, and the engine's spans are below it.
pub(crate) struct RequestSpan {
    span: Span,
    /// Answers of each prompt.
    choices: usize,
    outcome: Mutex<Outcome>,
}

#[derive(Default)]
struct Outcome {
    /// Of all answers: the prompt of each counts.
    input_tokens: usize,
    output_tokens: usize,
    /// Why each answer ended.
    reasons: Vec<&'static str>,
    /// The first error.
    error: Option<&'static str>,
}

impl RequestSpan {
    /// The span of an operation on the model that is served as `model`, with `choices` answers of each
    /// prompt.
    pub(crate) fn new(operation: &'static str, model: &str, choices: usize) -> Self {
        let span = tracing::info_span!(
            "gen_ai",
            otel.name = format_args!("{operation} {model}"),
            otel.kind = "server",
            otel.status_code = Empty,
            "error.type" = Empty,
            gen_ai.operation.name = operation,
            gen_ai.provider.name = "mlxcel",
            gen_ai.request.model = model,
            gen_ai.request.choice.count = choices as u64,
            gen_ai.request.max_tokens = Empty,
            gen_ai.request.temperature = Empty,
            gen_ai.request.top_p = Empty,
            gen_ai.request.top_k = Empty,
            gen_ai.request.frequency_penalty = Empty,
            gen_ai.request.presence_penalty = Empty,
            gen_ai.request.seed = Empty,
            gen_ai.request.stop_sequences = Empty,
            gen_ai.response.model = model,
            gen_ai.response.finish_reasons = Empty,
            gen_ai.usage.input_tokens = Empty,
            gen_ai.usage.output_tokens = Empty,
        );
        Self { span, choices: choices.max(1), outcome: Mutex::default() }
    }

    /// Runs `work` inside the span.
    pub(crate) fn in_scope<T>(&self, work: impl FnOnce() -> T) -> T {
        self.span.in_scope(work)
    }

    /// Records how the first answer is generated; others differ in the seed alone.
    pub(crate) fn asks(&self, options: &Options) {
        if self.span.is_disabled() {
            return;
        }
        let sampling = &options.sampling;
        self.span.record("gen_ai.request.max_tokens", options.max_tokens as u64);
        self.span.record("gen_ai.request.temperature", decimal(sampling.temperature));
        self.span.record("gen_ai.request.top_p", sampling.top_p.map(decimal));
        self.span.record("gen_ai.request.top_k", sampling.top_k.map(u64::from));
        self.span.record("gen_ai.request.frequency_penalty", sampling.frequency_penalty.map(decimal));
        self.span.record("gen_ai.request.presence_penalty", sampling.presence_penalty.map(decimal));
        self.span.record("gen_ai.request.seed", sampling.seed);
        if !options.stop_strings.is_empty() {
            self.span.record("gen_ai.request.stop_sequences", tracing::field::debug(&options.stop_strings));
        }
    }

    /// Counts the tokens of texts that were computed.
    pub(crate) fn computed(&self, tokens: usize) {
        self.lock().input_tokens += tokens;
    }

    /// Notes that an answer, or the submission of one, failed.
    pub(crate) fn failed(&self, error: &Error) {
        self.lock().error.get_or_insert(error.kind().as_str());
    }

    /// Notes the end of an answer, which comes early if its client left.
    fn ended(&self, stream: &AsyncRequestStream) {
        let mut outcome = self.lock();
        let usage = stream.usage();
        outcome.input_tokens += usage.prompt_tokens;
        outcome.output_tokens += usage.generated_tokens;
        let reason = match stream.finish_reason() {
            Some(FinishReason::Stop | FinishReason::StopString) => "stop",
            Some(reason @ (FinishReason::TimeLimit | FinishReason::Cancelled)) => {
                outcome.error.get_or_insert(reason.as_str());
                reason.as_str()
            }
            Some(_) => "length",
            None if outcome.error.is_some() => "error",
            None => FinishReason::Cancelled.as_str(),
        };
        outcome.reasons.push(reason);
    }

    fn lock(&self) -> MutexGuard<'_, Outcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RequestSpan {
    fn drop(&mut self) {
        let outcome = std::mem::take(&mut *self.lock());
        self.span.record("gen_ai.usage.input_tokens", (outcome.input_tokens / self.choices) as u64);
        if !outcome.reasons.is_empty() {
            self.span.record("gen_ai.usage.output_tokens", outcome.output_tokens as u64);
            self.span.record("gen_ai.response.finish_reasons", tracing::field::debug(&outcome.reasons));
        }
        if let Some(error) = outcome.error {
            self.span.record("error.type", error);
            self.span.record("otel.status_code", "ERROR");
        }
    }
}

/// `value` with as many digits as it has in float32.
fn decimal(value: f32) -> f64 {
    value.to_string().parse().unwrap_or_else(|_| f64::from(value))
}

/// An answer on its way, which its request's span watches.
pub(crate) struct ServedStream {
    stream: AsyncRequestStream,
    span: Arc<RequestSpan>,
}

impl ServedStream {
    /// An answer of the request of `span`.
    pub(crate) fn new(stream: AsyncRequestStream, span: Arc<RequestSpan>) -> Self {
        Self { stream, span }
    }

    /// The next piece of text; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Result<String>> {
        let next = self.stream.next().await;
        self.watch(next)
    }

    /// The next token; `None` at the end.
    pub(crate) async fn next_token(&mut self) -> Option<Result<SampledToken>> {
        let next = self.stream.next_token().await;
        self.watch(next)
    }

    fn watch<T>(&self, next: Option<Result<T>>) -> Option<Result<T>> {
        if let Some(Err(error)) = &next {
            self.span.failed(error);
        }
        next
    }
}

impl Deref for ServedStream {
    type Target = AsyncRequestStream;

    fn deref(&self) -> &AsyncRequestStream {
        &self.stream
    }
}

impl Drop for ServedStream {
    fn drop(&mut self) {
        self.span.ended(&self.stream);
    }
}
