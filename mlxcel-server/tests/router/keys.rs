//! Who may ask.

use axum::body::Body;
use axum::http::Request;
use mlxcel_server::Server;
use mlxcel_session::ErrorKind;
use tower::ServiceExt;

use crate::harness::engine;

#[tokio::test]
async fn requests_without_the_key_are_refused() {
    let router = Server::new("pip", engine()).with_api_key("secret").router().unwrap();
    for (header, value, expected) in [
        ("accept", "*/*", 401),
        ("authorization", "Bearer ", 401),
        ("authorization", "Bearer secre", 401),
        ("authorization", "secret", 401),
        ("x-api-key", "", 401),
        ("x-api-key", "wrong", 401),
        ("x-api-key", "secret", 200),
        ("authorization", "Bearer secret", 200),
        ("authorization", "bearer secret", 200),
    ] {
        for (path, expected) in [("/v1/models", expected), ("/metrics", expected), ("/health", 200)] {
            let request = Request::builder().uri(path).header(header, value).body(Body::empty());
            let response = router.clone().oneshot(request.unwrap()).await.unwrap();
            assert_eq!(response.status().as_u16(), expected, "{path} {header}: {value}");
        }
    }
}

#[test]
fn an_empty_key_is_an_error() {
    let error = Server::new("pip", engine()).with_api_key("").start().unwrap_err();
    assert_eq!((error.kind(), error.context("field")), (ErrorKind::InvalidInput, Some("api_key")));
}
