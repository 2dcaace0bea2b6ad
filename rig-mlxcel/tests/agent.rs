//! An agent of rig on the bundled story teller.
#![allow(clippy::unwrap_used)]

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::StreamExt;
use mlxcel_server::Server;
use mlxcel_session::{Engine, Model};
use rig_agent::prelude::*;
use rig_agent::tool::ToolContext;
use rig_core::completion::CompletionRequest;
use rig_core::message::ToolChoice;
use rig_core::providers::openai::OpenAI;
use rig_core::streaming::{Item, StreamEvent};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/models/storyteller");
const QUESTION: &str = "Tell me a story about a fox named Pip.";

fn provider() -> OpenAI {
    let engine = Engine::new(Model::open(MODEL).unwrap()).unwrap();
    rig_mlxcel::provider(Server::new("storyteller", engine).router().unwrap())
}

fn asked(tokens: u64) -> CompletionRequest {
    CompletionRequest::new(QUESTION).temperature(0.0).max_tokens(tokens)
}

#[tokio::test]
async fn a_stream_joins_to_the_answer() {
    let model = provider().completion("storyteller");
    let whole = model.call(asked(40)).await.unwrap();
    assert!(whole.text().starts_with("Pip"), "{}", whole.text());
    assert_eq!(whole.usage.output_tokens, Some(40));
    let mut stream = model.stream(asked(40)).unwrap();
    let mut text = String::new();
    while let Some(item) = stream.next().await {
        if let Item::Event(StreamEvent::Text { text: piece, .. }) = item.unwrap() {
            text.push_str(&piece);
        }
    }
    assert_eq!(text, whole.text());
}

#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Place {
    Barn,
    Pond,
}

#[derive(Deserialize, Serialize, JsonSchema)]
struct Where {
    place: Place,
}

#[tokio::test]
async fn an_answer_follows_its_schema() {
    let request = asked(200).output_schema(schemars::schema_for!(Where));
    let response = provider().completion("storyteller").call(request).await.unwrap();
    serde_json::from_str::<Where>(&response.text()).unwrap();
}

#[derive(Clone, Default)]
struct Look(Arc<AtomicUsize>);

impl Tool for Look {
    const NAME: &'static str = "look";
    type Args = Where;
    type Output = String;
    type Error = Infallible;

    fn description(&self) -> String {
        "Looks at a place.".to_owned()
    }

    fn parameters(&self) -> Value {
        json!({
            "type": "object",
            "properties": { "place": { "type": "string", "enum": ["barn", "pond"] } },
            "required": ["place"],
            "additionalProperties": false,
        })
    }

    async fn call(&self, _: &mut ToolContext, _: Where) -> Result<String, Infallible> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok("nothing".to_owned())
    }
}

#[tokio::test]
async fn an_agent_calls_its_tool() {
    let looks = Look::default();
    let agent = AgentBuilder::new(provider().completion("storyteller"))
        .tool(looks.clone())
        .tool_choice(ToolChoice::Required)
        .temperature(0.0)
        .max_tokens(200)
        .build();
    // The story teller calls the tool for as long as it has to, so the turns end.
    let _ = agent.prompt(QUESTION).max_turns(2).await;
    assert!(looks.0.load(Ordering::Relaxed) > 0);
}

#[tokio::test]
async fn texts_are_embedded() {
    let model = provider().embedding("storyteller", None);
    let response = model.call(vec!["a fox named Pip".to_owned(), "snow".to_owned()]).await.unwrap();
    let lengths =
        response.embeddings.iter().map(|embedding| embedding.vec.iter().map(|x| x * x).sum::<f64>());
    assert!(lengths.clone().all(|length| (length - 1.0).abs() < 1e-3), "{:?}", lengths.collect::<Vec<_>>());
}

#[tokio::test]
async fn errors_are_those_of_the_server() {
    let error = provider().completion("other").call(asked(4)).await.unwrap_err();
    assert!(error.to_string().contains("404") && error.to_string().contains("GET /v1/models"), "{error}");
}
