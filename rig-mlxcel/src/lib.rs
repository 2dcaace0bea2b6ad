//! Models of mlxcel in [rig](rig_core): completions, tools, structured output, embeddings and reranking
//! without a network.
//!
//! [`provider`] takes the router of an [`mlxcel_server::Server`] and gives rig's client of OpenAI's API. Its
//! requests are answered in this process, by the code that answers HTTP clients: what holds for them, such as
//! limits, turns of clients and metrics, holds for an agent. Everything that rig builds on its models works:
//! agents, tools, extractors, vector stores.
//!
//! ```no_run
//! use mlxcel_server::Server;
//! use mlxcel_session::{Engine, Model};
//! use rig_core::completion::CompletionRequest;
//!
//! #[tokio::main(flavor = "current_thread")]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let engine = Engine::new(Model::open("models/SmolLM2-135M-Instruct")?)?;
//!     let mlxcel = rig_mlxcel::provider(Server::new("smollm2", engine).router()?);
//!     let response = mlxcel.completion("smollm2").call(CompletionRequest::new("Who are you?")).await?;
//!     println!("{}", response.text());
//!     Ok(())
//! }
//! ```
//!
//! Requests run in the runtime of tokio, as the server does.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

use std::error::Error;
use std::fmt;

use axum::Router;
use axum::body::{Body, to_bytes};
use futures_util::{FutureExt, TryStreamExt};
use rig_core::http_client::{
    self, Bytes, HttpClientExt, LazyBody, MultipartForm, Request, Response, StreamingResponse,
};
use rig_core::providers::openai::wire::{Dialect, Quirks};
use rig_core::providers::openai::{OpenAI, OpenAIConfig};
use tower::ServiceExt;

/// OpenAI's API as the server speaks it.
const DIALECT: Dialect = {
    let mut quirks = Quirks::openai();
    // A schema constrains the answer, not the calls of tools before it.
    quirks.response_format_with_tools = true;
    Dialect::gateway("mlxcel", "http://localhost/v1", "MLXCEL_API_KEY").with_quirks(quirks)
};

/// rig's client of the models behind `router`, which [`Server::router`](mlxcel_server::Server::router) makes.
///
/// Models are named as the server names them. A server with an API key asks for it here too:
/// [`with_key`] takes it.
pub fn provider(router: Router) -> OpenAI {
    with_key(router, "")
}

/// [`provider`], with the key of [`Server::with_api_key`](mlxcel_server::Server::with_api_key).
pub fn with_key(router: Router, key: &str) -> OpenAI {
    OpenAIConfig::with_key(&DIALECT, key).connect(InProcess::new(router))
}

/// A transport of rig: requests are answered by a router, in this process.
///
/// [`provider`] is made of it; a configuration of rig for another API that the server has, such as
/// Anthropic's, takes it too.
#[derive(Clone)]
pub struct InProcess {
    router: Router,
}

impl InProcess {
    /// A transport to `router`.
    pub fn new(router: Router) -> Self {
        Self { router }
    }

    async fn answer(self, request: Request<Body>) -> http_client::Result<Response<Body>> {
        let response = match self.router.oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        if response.status().is_success() {
            return Ok(response);
        }
        let (parts, body) = response.into_parts();
        let body = String::from_utf8_lossy(&whole(body).await?).into_owned();
        Err(http_client::Error::non_success_with_details(parts.status, parts.headers, body))
    }
}

impl fmt::Debug for InProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InProcess").finish_non_exhaustive()
    }
}

impl HttpClientExt for InProcess {
    fn send<T, U>(
        &self,
        request: Request<T>,
    ) -> impl Future<Output = http_client::Result<Response<LazyBody<U>>>> + Send + 'static
    where
        T: Into<Bytes>,
        U: From<Bytes> + Send + 'static,
    {
        let answer = self.clone().answer(request.map(|body| Body::from(body.into())));
        async move {
            Ok(answer.await?.map(|body| -> LazyBody<U> { whole(body).map(|read| read.map(U::from)).boxed() }))
        }
    }

    fn send_multipart<U>(
        &self,
        request: Request<MultipartForm>,
    ) -> impl Future<Output = http_client::Result<Response<LazyBody<U>>>> + Send + 'static
    where
        U: From<Bytes> + Send + 'static,
    {
        let path = request.uri().path().to_owned();
        async move { Err(http_client::Error::instance(NoForms { path })) }
    }

    fn send_streaming<T>(
        &self,
        request: Request<T>,
    ) -> impl Future<Output = http_client::Result<StreamingResponse>> + Send
    where
        T: Into<Bytes>,
    {
        let answer = self.clone().answer(request.map(|body| Body::from(body.into())));
        async move {
            Ok(answer.await?.map(|body| -> http_client::BoxedStream {
                Box::pin(body.into_data_stream().map_err(http_client::Error::instance))
            }))
        }
    }
}

async fn whole(body: Body) -> http_client::Result<Bytes> {
    // The server made it: how long it is, its limits say.
    to_bytes(body, usize::MAX).await.map_err(http_client::Error::instance)
}

/// A request with a form, such as an audio file to transcribe.
#[derive(Debug)]
struct NoForms {
    path: String,
}

impl fmt::Display for NoForms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the server does not take forms, which {} asks for; its models read text", self.path)
    }
}

impl Error for NoForms {}
