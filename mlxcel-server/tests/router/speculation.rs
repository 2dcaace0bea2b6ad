//! Drafts for the requests of a served model.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mlxcel_server::Server;
use mlxcel_session::{DraftContext, DraftSource, Drafter, ErrorKind, Result, Speculation, TokenId};
use serde_json::Value;

use crate::harness::{answer, ask, engine, requests};

/// Drafts one token, and counts how often it is asked.
#[derive(Clone, Debug, Default)]
struct Counted(Arc<AtomicUsize>);

impl DraftSource for Counted {
    fn drafter(&self, _: &DraftContext<'_>) -> Result<Box<dyn Drafter>> {
        Ok(Box::new(self.clone()))
    }
}

impl Drafter for Counted {
    fn draft(&mut self, _: &[TokenId], _: usize) -> Result<Vec<TokenId>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(vec![7])
    }
}

/// The answer without what differs from time to time.
fn said(answer: &Value) -> Value {
    [&answer["choices"], &answer["output"], &answer["content"]]
        .into_iter()
        .find_map(|part| part.get(0))
        .map(|first| [&first["text"], &first["message"]["content"], &first["content"][0]["text"]])
        .and_then(|texts| texts.into_iter().find(|text| text.is_string()).cloned())
        .unwrap()
}

#[tokio::test]
async fn requests_of_every_path_are_drafted_for() {
    let source = Counted::default();
    let speculation = Speculation::new(source.clone()).with_width(1);
    let plain = Server::new("pip", engine()).router().unwrap();
    let drafting = Server::new("pip", engine()).with_speculation("pip", speculation).router().unwrap();
    for (path, mut body) in requests(9) {
        body["temperature"] = 0.into();
        let before = source.0.load(Ordering::Relaxed);
        let expected = answer(&plain, path, Some(body.clone())).await;
        assert_eq!(source.0.load(Ordering::Relaxed), before);
        let found = answer(&drafting, path, Some(body)).await;
        assert_eq!(said(&found), said(&expected), "{path}");
        assert!(source.0.load(Ordering::Relaxed) > before, "{path}");
    }
    for (router, has) in [(&plain, false), (&drafting, true)] {
        let (_, figures) = ask(router, "/metrics", None).await;
        assert_eq!(figures.contains("mlxcel_drafted_tokens_total{"), has, "{figures}");
    }
}

#[test]
fn a_model_that_is_not_served_is_not_drafted_for() {
    let server = Server::new("pip", engine()).with_speculation("pop", Speculation::lookup());
    let error = server.start().unwrap_err();
    assert_eq!((error.kind(), error.context("name")), (ErrorKind::InvalidInput, Some("pop")));
}
