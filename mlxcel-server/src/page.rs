//! The page to chat on.

use axum::http::header;
use axum::response::{Html, IntoResponse, Response};

/// It loads nothing from elsewhere and runs no script but its own, whatever a model writes.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub(crate) async fn html() -> Response {
    ([(header::CONTENT_SECURITY_POLICY, POLICY)], Html(include_str!("page.html"))).into_response()
}

pub(crate) async fn script() -> Response {
    ([(header::CONTENT_TYPE, "text/javascript; charset=utf-8")], include_str!("chat.js")).into_response()
}
