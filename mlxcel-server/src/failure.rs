//! Errors in the API's format.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use mlxcel_session::mlxcel_core::one_line;
use mlxcel_session::{Error, ErrorKind, FinishReason};
use serde::Serialize;
use serde_json::{Value, json};

/// The names of OpenAI's API for fields of the SDK.
const OPENAI: [(&str, &str); 2] = [("stop_strings", "stop"), ("ignore_stop", "ignore_eos")];

/// An error with the status that HTTP has for it.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    body: Body,
}

#[derive(Clone, Debug, Serialize)]
struct Body {
    message: String,
    #[serde(rename = "type")]
    kind: &'static str,
    /// The field of the request that is wrong.
    param: Option<String>,
    code: Option<&'static str>,
}

impl ApiError {
    /// A request that is wrong in its field `param`.
    pub(crate) fn invalid(param: &str, message: impl Into<String>) -> Self {
        let param = Some(param.to_owned()).filter(|param| !param.is_empty());
        Self::new(StatusCode::BAD_REQUEST, message, "invalid_request_error", param, None)
    }

    /// A field that this server does not support.
    pub(crate) fn unsupported(param: &str, what: &str) -> Self {
        Self::invalid(param, format!("{what}: not supported by this server")).with_code("unsupported")
    }

    fn with_code(mut self, code: &'static str) -> Self {
        self.body.code = Some(code);
        self
    }

    /// A model that generates no text, asked for some.
    pub(crate) fn no_generation(name: &str) -> Self {
        let message = format!(
            "the model {name:?} only embeds texts and generates none; use /v1/embeddings or /v1/rerank"
        );
        Self::invalid("model", message).with_code("unsupported")
    }

    /// There is no such model.
    pub(crate) fn no_model(name: &str) -> Self {
        let message = format!("the model {name:?} does not exist; GET /v1/models lists what does");
        let (kind, param) = ("invalid_request_error", Some("model".to_owned()));
        Self::new(StatusCode::NOT_FOUND, message, kind, param, Some("model_not_found"))
    }

    /// An answer that was cut before its end, by the server and not by the model or its request.
    pub(crate) fn cut(reason: FinishReason) -> Self {
        let (status, message, code) = match reason {
            FinishReason::TimeLimit => {
                (StatusCode::GATEWAY_TIMEOUT, "the request ran into the server's time limit", "time_limit")
            }
            _ => (StatusCode::SERVICE_UNAVAILABLE, "the server is shutting down", "shutting_down"),
        };
        Self::new(status, message, "server_error", None, Some(code))
    }

    /// The models are not loaded yet.
    pub(crate) fn loading() -> Self {
        let message = "the models are loading; /health/ready answers 200 when they are";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, message, "server_error", None, Some("loading"))
    }

    /// The body has more bytes than the limit.
    pub(crate) fn too_large(limit: usize) -> Self {
        let message = format!(
            "the body is larger than the limit of {limit} bytes, which `mlxcel serve --max-body` can raise"
        );
        Self::with_status(StatusCode::PAYLOAD_TOO_LARGE, message)
    }

    pub(crate) fn with_status(status: StatusCode, message: impl Into<String>) -> Self {
        Self::new(status, message, "invalid_request_error", None, None)
    }

    fn new(
        status: StatusCode,
        message: impl Into<String>,
        kind: &'static str,
        param: Option<String>,
        code: Option<&'static str>,
    ) -> Self {
        Self { status, body: Body { message: message.into(), kind, param, code } }
    }

    /// The same with the name that an API has for its field: `names` are pairs of ours and that of the API.
    pub(crate) fn renamed(mut self, names: &[(&str, &str)]) -> Self {
        let Some(own) = &self.body.param else { return self };
        let Some((own, name)) = names.iter().find(|(from, _)| from == own) else { return self };
        let message = &self.body.message;
        self.body.message = match message.strip_prefix(own) {
            Some(rest) => format!("{name}{rest}"),
            // Some names are also ordinary words.
            None if own.contains('_') => message.replace(own, name),
            None => message.replace(&format!("field: {own}"), &format!("field: {name}")),
        };
        self.body.param = Some((*name).to_owned());
        self
    }

    /// The body in OpenAI's format.
    pub(crate) fn json(&self) -> Value {
        json!({ "error": self.body })
    }

    /// The body in Anthropic's format, which names the field in the message.
    pub(crate) fn anthropic_json(&self) -> Value {
        let kind = match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            504 => "timeout_error",
            500.. => "api_error",
            _ => "invalid_request_error",
        };
        let Body { message, param, .. } = &self.body;
        let message = match param {
            Some(param) if !message.contains(param) => format!("{param}: {message}"),
            _ => message.clone(),
        };
        let mut error = json!({ "type": kind, "message": message });
        if param.as_deref() == Some("thread") {
            // Clients that want stored conversations then send whole ones.
            error["details"] = json!({ "error_code": "thread_unsupported_request" });
        }
        json!({ "type": "error", "error": error })
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        let (status, kind, code) = match error.kind() {
            ErrorKind::InvalidInput => (StatusCode::BAD_REQUEST, "invalid_request_error", None),
            ErrorKind::TooComplex => (StatusCode::BAD_REQUEST, "invalid_request_error", Some("too_complex")),
            ErrorKind::CapacityExceeded => {
                (StatusCode::BAD_REQUEST, "invalid_request_error", Some("context_length_exceeded"))
            }
            ErrorKind::Unsupported | ErrorKind::NotFound => {
                (StatusCode::BAD_REQUEST, "invalid_request_error", Some("unsupported"))
            }
            ErrorKind::ResourceExhausted => {
                (StatusCode::TOO_MANY_REQUESTS, "overloaded_error", Some("queue_full"))
            }
            ErrorKind::Cancelled => (StatusCode::SERVICE_UNAVAILABLE, "server_error", Some("shutting_down")),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "server_error", None),
        };
        // What a grammar is made of has another name in each request.
        let param = error.context("field").or((error.operation() == "compile grammar").then_some("mask"));
        let param = param.map(str::to_owned);
        Self::new(status, one_line(&error), kind, param, code).renamed(&OPENAI)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.json())).into_response();
        if self.status == StatusCode::TOO_MANY_REQUESTS || self.body.code == Some("loading") {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        // For paths of another API, whose errors have another format.
        response.extensions_mut().insert(self);
        response
    }
}
