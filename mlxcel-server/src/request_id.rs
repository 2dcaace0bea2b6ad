//! The number and the name of a request.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::extract::{Request, State};
use axum::http::HeaderName;
use axum::middleware::Next;
use axum::response::Response;

use crate::served::Models;

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The number of a request, by which its answers are a group.
#[derive(Clone, Copy)]
pub(crate) struct RequestNumber(pub(crate) u64);

/// Names the request, or repeats the name that the client gave it, in the answer's `X-Request-Id`.
pub(crate) async fn identify(
    State(models): State<Arc<Models>>,
    mut request: Request,
    next: Next,
) -> Response {
    let shared = &models.shared;
    let number = shared.requests.fetch_add(1, Ordering::Relaxed);
    request.extensions_mut().insert(RequestNumber(number));
    let given =
        request.headers().get(REQUEST_ID).filter(|id| id.len() <= 128 && id.to_str().is_ok()).cloned();
    let mut response = next.run(request).await;
    let id = given.or_else(|| format!("req-{:x}-{number}", shared.started).parse().ok());
    response.headers_mut().extend(id.map(|id| (REQUEST_ID, id)));
    response
}
