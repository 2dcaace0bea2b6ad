//! Mounts OpenAI's API under a path of an application, behind the application's own authentication.
#![forbid(unsafe_code)]

use axum::Router;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use mlxcel_server::{Client, Server};
use mlxcel_session::{Engine, Model};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/models/storyteller");

/// The application: its own routes, and the models at `/llm/v1`.
pub(crate) fn application() -> mlxcel_session::Result<Router> {
    let models = Server::new("storyteller", Engine::new(Model::open(MODEL)?)?).router()?;
    Ok(Router::new().route("/", get(|| async { "hello" })).nest("/llm", models.layer(from_fn(authenticate))))
}

/// Lets users in, and has them take turns.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let user = match request.headers().get(header::AUTHORIZATION).map(|value| value.as_bytes()) {
        Some(b"Bearer ann") => 1,
        Some(b"Bearer bob") => 2,
        _ => return StatusCode::UNAUTHORIZED.into_response(),
    };
    request.extensions_mut().insert(Client(user));
    next.run(request).await
}

#[allow(dead_code, reason = "tests speak to the application without a listener")]
#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    Ok(axum::serve(listener, application()?).await?)
}
