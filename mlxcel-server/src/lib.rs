//! Language models over HTTP: an [`axum::Router`] with OpenAI's and Anthropic's endpoints, to mount in an
//! application of your own.
//!
//! A [`Server`] is made of one or more [`Engine`](mlxcel_session::Engine)s under the names that clients ask
//! for. Its router knows no listener, no TLS and no users: the application mounts it under a path beside its
//! own routes, and adds its own [`tower`](https://docs.rs/tower) layers, such as its authentication.
//!
//! ```no_run
//! use axum::Router;
//! use axum::routing::get;
//! use mlxcel_server::Server;
//! use mlxcel_session::{Engine, Model};
//!
//! #[tokio::main(flavor = "current_thread")]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let engine = Engine::new(Model::open("models/storyteller")?)?;
//!     let models = Server::new("storyteller", engine).with_api_key("secret").router()?;
//!     // Clients use http://127.0.0.1:3000/llm/v1 as their base URL.
//!     let app = Router::new().route("/", get(|| async { "hello" })).nest("/llm", models);
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//!     axum::serve(listener, app).await?;
//!     Ok(())
//! }
//! ```
//!
//! # Paths
//!
//! | path | answers |
//! |---|---|
//! | `/v1/chat/completions`, `/v1/responses`, `/v1/completions` | text, whole or as server-sent events, with tools and JSON schemas |
//! | `/v1/messages`, `/v1/messages/count_tokens` | the same in the words of Anthropic's API |
//! | `/v1/embeddings` | vectors |
//! | `/v1/rerank` | documents in the order of how well they answer a query |
//! | `/tokenize`, `/detokenize`, `/tokenizer_info` | tokens of texts, and back; the special tokens |
//! | `/v1/models`, `/v1/models/{name}`, `/server_info` | the served models |
//! | `/v1/load_lora_adapter`, `/v1/unload_lora_adapter` | only with [`Server::with_adapter_folder`]: loads and unloads adapters |
//! | `/metrics` | figures for Prometheus |
//! | `/health/live`, `/health/ready` | without a key: whether the process answers, and whether its engines take requests (`/health` is the latter) |
//! | `/openapi.json` | without a key: the description of this API |
//!
//! A request that names no model is for the first. `MODEL:ADAPTER` is a model with one of its
//! [adapters](Server::with_adapters). Fields that would change the answer and are not supported are errors.
//!
//! # What a request may take
//!
//! [`Limits`] bounds every field. Clients take turns at threads, sequences and the queue; [`Client`] says who
//! is one. A request whose client disconnects is cancelled. [`Running::shutdown`] lets requests finish before
//! a process ends, and [`Startup`] answers `/health` while the models are loading.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod adapted;
mod adapter_routes;
mod adapters;
mod answer;
mod api_key;
mod body;
mod chat;
mod chat_pieces;
mod client;
mod completions;
mod content;
mod echo;
mod embeddings;
mod failure;
mod fields;
mod header;
mod health;
mod ids;
mod kinds;
mod limits;
mod logprobs;
mod message_pieces;
mod messages;
mod metrics;
mod model_list;
mod newlines;
mod openapi;
mod origins;
mod page;
mod prompts;
mod request_id;
mod rerank;
mod response_counts;
mod response_pieces;
mod responses;
mod routes;
mod sender;
mod served;
mod server;
mod spans;
mod sse;
mod startup;
mod texts;
mod tools;
mod usage;
mod work;

pub use client::Client;
pub use limits::Limits;
pub use origins::Origins;
pub use server::{Running, Server};
pub use startup::Startup;
