//! `/v1/rerank`, in the words of Cohere's and Jina's APIs.

use axum::Json;
use mlxcel_session::RerankOptions;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::body::{Asked, Body};
use crate::failure::ApiError;
use crate::kinds::{Field, Kind, Object};

#[derive(Deserialize)]
pub(crate) struct RerankRequest {
    query: String,
    documents: Vec<Document>,
    top_n: Option<usize>,
    return_documents: Option<bool>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Document {
    Text(String),
    Object(Object<DocumentText>),
}

#[derive(Deserialize)]
struct DocumentText {
    text: String,
}

const DOCUMENT: Kind = Kind::Either(&[Kind::Text, Kind::Object(&[Field::required("text", Kind::Text)])]);

impl From<Document> for String {
    fn from(document: Document) -> Self {
        match document {
            Document::Text(text) | Document::Object(Object(DocumentText { text })) => text,
        }
    }
}

impl Asked for RerankRequest {
    fn fields() -> Vec<Field> {
        vec![
            Field::required("query", Kind::Text),
            Field::required("documents", Kind::List(&DOCUMENT)),
            Field::new("top_n", Kind::Count),
            Field::new("return_documents", Kind::Flag),
        ]
    }
}

/// The documents by how well they answer the query, the best first; a score is a probability.
pub(crate) async fn rerank(
    Body { request, app, sender }: Body<RerankRequest>,
) -> Result<Json<Value>, ApiError> {
    app.expect_no_adapter("reranking")?;
    let most = app.limits().texts;
    if !(1..=most).contains(&request.documents.len()) {
        return Err(ApiError::invalid("documents", format!("from 1 to {most} documents")));
    }
    if request.top_n == Some(0) {
        return Err(ApiError::invalid("top_n", "top_n must be at least 1"));
    }
    let share = sender.share;
    // Documents take no more than the body did.
    drop(sender);
    let documents: Vec<String> = request.documents.into_iter().map(String::from).collect();
    let (engine, query) = (app.engine.clone(), request.query);
    let rerank = move |part: &[String], cancel| {
        let options = RerankOptions::default().with_probabilities(true).with_cancel(cancel);
        Ok(engine.rerank(&query, part, &options)?)
    };
    let parts = app.in_turns(share.client, &documents, rerank).await?;
    let mut scores: Vec<(usize, f32)> = parts.into_iter().flatten().enumerate().collect();
    scores.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    scores.truncate(request.top_n.unwrap_or(usize::MAX));
    let result = |(index, score): (usize, f32)| {
        let mut result = json!({ "index": index, "relevance_score": score });
        if request.return_documents == Some(true) {
            result["document"] = json!({ "text": documents[index] });
        }
        result
    };
    let results: Vec<Value> = scores.into_iter().map(result).collect();
    Ok(Json(json!({ "model": app.name, "results": results })))
}
