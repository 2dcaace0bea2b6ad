//! The bodies of requests: read in bounded time and memory, by the thread of a worker.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{ConnectInfo, FromRequest, Request};
use axum::http::{StatusCode, header};
use mlxcel_session::{Error, ErrorKind, Share};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::client::Client;
use crate::failure::ApiError;
use crate::kinds::{self, Field, Kind};
use crate::request_id::RequestNumber;
use crate::sender::Sender;
use crate::served::{Models, ServedModel};

/// How long a client has to send a request's body.
const BODY_TIME: Duration = Duration::from_secs(30);

/// How many bytes of bodies are parsed at the same time, or one body if that is longer: parsed, JSON can take
/// a hundred times as much, and many clients may send such. As many may wait for adapters.
pub(crate) const PARSED_AT_ONCE: usize = 8 << 20;

/// What is asked of a path.
pub(crate) trait Asked: DeserializeOwned + Send + 'static {
    /// The fields that it has beside the model's name.
    fn fields() -> Vec<Field>;
}

/// Which model is asked, if one is named.
#[derive(Deserialize)]
struct Named {
    model: Option<String>,
}

/// All fields of a body. Others are refused: they may be meant to constrain the answer.
pub(crate) fn fields_of<T: Asked>() -> Vec<Field> {
    [vec![Field::new("model", Kind::Text)], T::fields()].concat()
}

/// Fields that change no answer, and are not looked at.
const WITHOUT_EFFECT: [&str; 16] = [
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "prediction",
    "background",
    "truncation",
    "cache_control",
    "inference_geo",
    "speed",
    "user_profile_id",
    "workspace_id",
];

/// The JSON body of a request, the model that it is for, and who sent it. Pages of other sites cannot send
/// one without being asked, since it has to be called JSON.
pub(crate) struct Body<T> {
    pub(crate) request: T,
    pub(crate) app: Arc<ServedModel>,
    pub(crate) sender: Sender,
}

impl<T: Asked> FromRequest<Arc<Models>> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, models: &Arc<Models>) -> Result<Self, ApiError> {
        if !is_json(&request) {
            let message = "the Content-Type must be application/json";
            return Err(ApiError::with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
        if request.headers().get(header::CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
            let message = "a Content-Encoding is not supported: send the body uncompressed";
            return Err(ApiError::with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
        let (shared, client) = (&models.shared, client(&request));
        let length = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
        if length
            .and_then(|length| length.parse().ok())
            .is_some_and(|length: usize| length > shared.limits.body_bytes)
        {
            // It is not waited for.
            return Err(ApiError::too_large(shared.limits.body_bytes));
        }
        let group = request.extensions().get::<RequestNumber>().map_or(0, |number| number.0);
        let Ok(body) = tokio::time::timeout(BODY_TIME, Bytes::from_request(request, models)).await else {
            return Err(ApiError::with_status(
                StatusCode::REQUEST_TIMEOUT,
                "the body did not arrive in time",
            ));
        };
        let body = body.map_err(|rejection| match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => ApiError::too_large(shared.limits.body_bytes),
            status => ApiError::with_status(status, rejection.body_text()),
        })?;
        let bytes = body.len().clamp(1, PARSED_AT_ONCE) as u32;
        let room = Arc::clone(&shared.parsing).acquire_many_owned(bytes).await;
        let room = room.map_err(|error| {
            Error::new(ErrorKind::Internal, "read request", "the server is shutting down").with_source(error)
        })?;
        let (named, request) = shared.workers.run(client, move || read::<T>(&body)).await??;
        let app = models.find(named.model.as_deref())?;
        Ok(Self { request, app, sender: Sender::new(Share { client, group }, room) })
    }
}

/// The number of the client that sent a request: as the application says, else by its address.
fn client(request: &Request) -> u64 {
    let extensions = request.extensions();
    let told = extensions.get::<Client>().copied();
    let address = || extensions.get::<ConnectInfo<SocketAddr>>().map(|info| Client::of_address(info.0.ip()));
    told.or_else(address).map_or(0, |client| client.0)
}

fn read<T: Asked>(body: &[u8]) -> Result<(Named, T), ApiError> {
    let given: BTreeMap<String, Option<IgnoredAny>> = serde_json::from_slice(body).map_err(|error| {
        if error.is_data() {
            ApiError::invalid("", "the body must be a JSON object")
        } else {
            no_json(&error)
        }
    })?;
    let given = given.iter().filter_map(|(field, value)| value.map(|_| field.as_str()));
    let known = fields_of::<T>();
    let is_known = |name: &str| known.iter().any(|field| field.name == name);
    let mut unknown = given.filter(|field| !WITHOUT_EFFECT.contains(field) && !is_known(field));
    if let Some(field) = unknown.next() {
        return Err(ApiError::unsupported(field, &format!("the field {field:?}")));
    }
    let read = || Ok((serde_json::from_slice(body)?, serde_json::from_slice(body)?));
    read().map_err(|error| wrong(body, &known, &error))
}

/// What is wrong with a body that is not what is asked, in the words of the API: `error` has those of Rust.
fn wrong(body: &[u8], fields: &[Field], error: &serde_json::Error) -> ApiError {
    let given = match serde_json::from_slice(body) {
        Ok(given) => given,
        Err(error) => return no_json(&error),
    };
    kinds::wrong_field(fields, &given).unwrap_or_else(|| {
        // A field that is given twice. Its place in the body says nothing.
        let message = error.to_string();
        let message = message.rsplit_once(" at line ").map_or(message.as_str(), |(message, _)| message);
        ApiError::invalid("", message)
    })
}

fn no_json(error: &serde_json::Error) -> ApiError {
    ApiError::invalid("", format!("the body is not JSON: {error}"))
}

/// Whether the body is called JSON.
fn is_json(request: &Request) -> bool {
    let called = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence =
        called.unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || essence.starts_with("application/") && essence.ends_with("+json")
}
