//! The description of this API, for tools that read such.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Map, Value, json};

use crate::adapter_routes::{self, LoadRequest, UnloadRequest};
use crate::body::{Asked, fields_of};
use crate::chat::ChatRequest;
use crate::completions::CompletionRequest;
use crate::embeddings::EmbeddingRequest;
use crate::messages::{CountRequest, MessageRequest};
use crate::rerank::RerankRequest;
use crate::responses::ResponseRequest;
use crate::served::Models;
use crate::texts::{DetokenizeRequest, TokenizeRequest};

/// `/openapi.json`: the paths, and the fields that each takes. Their meaning is that of OpenAI's and
/// Anthropic's APIs.
pub(crate) async fn show(State(models): State<Arc<Models>>) -> Json<Value> {
    Json(document(adapter_routes::are_allowed(&models)))
}

fn document(with_adapters: bool) -> Value {
    let get = |summary: &str| json!({ "get": { "summary": summary, "responses": responses("the answer") } });
    let mut model = get("Describe a model");
    model["get"]["parameters"] =
        json!([{ "name": "name", "in": "path", "required": true, "schema": { "type": "string" } }]);
    let mut document = json!({
        "openapi": "3.1.0",
        "info": { "title": "mlxcel server", "version": env!("CARGO_PKG_VERSION") },
        "paths": {
            "/v1/chat/completions": post::<ChatRequest>("Answer a conversation"),
            "/v1/responses": post::<ResponseRequest>("Answer a conversation"),
            "/v1/responses/input_tokens": post::<ResponseRequest>("Count the tokens of a prompt"),
            "/v1/completions": post::<CompletionRequest>("Continue texts"),
            "/v1/embeddings": post::<EmbeddingRequest>("Embed texts"),
            "/v1/rerank": post::<RerankRequest>("Order documents by how well they answer a query"),
            "/v1/messages": post::<MessageRequest>("Answer a conversation"),
            "/v1/messages/count_tokens": post::<CountRequest>("Count the tokens of a prompt"),
            "/tokenize": post::<TokenizeRequest>("The tokens of a text"),
            "/detokenize": post::<DetokenizeRequest>("The text of tokens"),
            "/tokenizer_info": get("The special tokens of the first model"),
            "/v1/models": get("List the models"),
            "/v1/models/{name}": model,
            "/server_info": get("Describe the server"),
            "/health": get("Check that the server takes requests"),
            "/health/ready": get("Check that the server takes requests"),
            "/health/live": get("Check that the process answers"),
            "/metrics": get("Figures for Prometheus"),
        },
        "components": { "securitySchemes": { "key": { "type": "http", "scheme": "bearer" } } },
        "security": [{}, { "key": [] }],
    });
    if with_adapters {
        document["paths"]["/v1/load_lora_adapter"] = post::<LoadRequest>("Load an adapter");
        document["paths"]["/v1/unload_lora_adapter"] = post::<UnloadRequest>("Unload an adapter");
    }
    document
}

fn post<T: Asked>(summary: &str) -> Value {
    let fields = fields_of::<T>();
    let properties: Map<String, Value> =
        fields.iter().map(|field| (field.name.to_owned(), json!({}))).collect();
    let required: Vec<_> = fields.iter().filter(|field| field.is_required).map(|field| field.name).collect();
    let schema = json!({ "type": "object", "properties": properties, "required": required });
    json!({ "post": {
        "summary": summary,
        "requestBody": { "required": true, "content": { "application/json": { "schema": schema } } },
        "responses": responses("the answer, or server-sent events with `stream`"),
    }})
}

fn responses(answer: &str) -> Value {
    json!({ "200": { "description": answer }, "default": { "description": "an error: `error.message`, `error.param`, `error.code`" } })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The paths of `routes.rs` with their methods, but for the page and the description itself.
    fn routes() -> BTreeSet<(String, String)> {
        let source = include_str!("routes.rs");
        let routes = source.split(".route(\"").skip(1).filter_map(|route| {
            let (path, rest) = route.split_once("\", ")?;
            // Wildcards have no mark in the description.
            Some((path.replace("{*", "{"), rest.split_once('(')?.0.to_owned()))
        });
        routes.filter(|(path, _)| !["/", "/chat.js", "/openapi.json"].contains(&path.as_str())).collect()
    }

    #[test]
    fn the_paths_are_those_of_the_router() {
        let document = document(false);
        let paths = document["paths"].as_object().into_iter().flatten();
        let described: BTreeSet<(String, String)> = paths
            .flat_map(|(path, methods)| {
                methods.as_object().into_iter().flatten().map(move |method| (path, method.0))
            })
            .map(|(path, method)| (path.clone(), method.clone()))
            .collect();
        assert!(described.len() > 15);
        assert_eq!(described, routes());
    }
}
