//! The layer that lets those in who have the key.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::failure::ApiError;
use crate::served::Models;

/// Refuses requests without the key, if there is one.
pub(crate) async fn authorize(State(models): State<Arc<Models>>, request: Request, next: Next) -> Response {
    let Some(key) = &models.shared.api_key else { return next.run(request).await };
    if given(request.headers()).is_some_and(|given| is_same(given, key.as_bytes())) {
        return next.run(request).await;
    }
    let mut response =
        ApiError::with_status(StatusCode::UNAUTHORIZED, "the API key is missing or wrong").into_response();
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

/// The key that a request has, as `Authorization: Bearer KEY` or `x-api-key: KEY`.
fn given(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked("Bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"Bearer ").then_some(key)
    });
    let own = || headers.get("x-api-key").map(HeaderValue::as_bytes);
    bearer.or_else(own)
}

/// Compares in constant time: how long it takes does not depend on how many bytes are equal.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}
