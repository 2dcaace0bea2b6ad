//! The routes before the models are loaded.

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware;
use axum::response::{IntoResponse, Response};
use tower::ServiceExt;

use crate::failure::ApiError;
use crate::health;
use crate::messages;
use crate::server::Running;

/// The routes of a server whose models are still loading, so that a listener can be up from the beginning.
///
/// Until [`ready`](Self::ready) is called, `/health/live` answers 200, and every other path 503 with
/// `Retry-After`: `/health/ready`, by which a load balancer decides, and requests. Afterwards the routes are
/// those of the server.
///
/// ```no_run
/// use mlxcel_server::{Server, Startup};
/// use mlxcel_session::{Engine, LoadOptions, Model, OpenOptions, Prepare};
///
/// # async fn serve() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let startup = Startup::new();
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
/// let serving = tokio::spawn(axum::serve(listener, startup.router()).into_future());
/// let server = tokio::task::spawn_blocking(|| {
///     let load = LoadOptions::default().with_prepare(Prepare::Generation);
///     let model = Model::open_with("models/storyteller", &OpenOptions::default().with_load(load))?;
///     Server::new("storyteller", Engine::new(model)?).start()
/// });
/// startup.ready(&server.await??);
/// serving.await??;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Startup {
    server: Arc<OnceLock<Router>>,
}

impl Startup {
    /// Routes without a server.
    pub fn new() -> Self {
        Self::default()
    }

    /// The routes, now and when the server is ready.
    pub fn router(&self) -> Router {
        let routes = Router::new().fallback(route).layer(middleware::from_fn(messages::errors));
        routes.with_state(Arc::clone(&self.server))
    }

    /// Hands all requests from now on to `server`. Only the first call has an effect.
    pub fn ready(&self, server: &Running) {
        self.server.get_or_init(|| server.router());
    }
}

async fn route(State(server): State<Arc<OnceLock<Router>>>, request: Request) -> Response {
    match server.get() {
        // A router has no error.
        Some(router) => router.clone().oneshot(request).await.into_response(),
        None => loading(request.method(), request.uri().path()).await,
    }
}

/// The answer while the models are loading.
async fn loading(method: &Method, path: &str) -> Response {
    match path {
        "/health/live" if method == Method::GET => health::live().await.into_response(),
        "/health/ready" | "/health" => health::unavailable("loading", "the models are loading"),
        _ => ApiError::loading().into_response(),
    }
}
