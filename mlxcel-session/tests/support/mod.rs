//! An engine that answers from a list of texts, and the bundled model's oracle to fill the list with.
#![allow(dead_code, missing_docs, unreachable_pub)]

mod scripted;

use std::path::PathBuf;
use std::sync::Arc;

use mlxcel_session::mlxcel_core::{Capabilities, ModelInfo, TokenId};
use mlxcel_session::{Message, Tokenizer};
use serde::Deserialize;

pub use scripted::Scripted;

/// The folder of the bundled model.
pub fn storyteller() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../examples/models/storyteller")
}

#[derive(Deserialize)]
pub struct Case {
    pub messages: Option<Vec<Message>>,
    pub text: Option<String>,
    pub prompt: Vec<TokenId>,
    pub greedy: Vec<TokenId>,
    pub completion: String,
}

/// What transformers made of the bundled model.
pub fn oracle() -> Vec<Case> {
    #[derive(Deserialize)]
    struct Oracle {
        cases: Vec<Case>,
    }
    let text = std::fs::read_to_string(storyteller().join("oracle.json")).unwrap();
    serde_json::from_str::<Oracle>(&text).unwrap().cases
}

impl Scripted {
    /// An engine whose model says what follows in the first of `texts` that begins with the sequence, and
    /// otherwise token 1.
    pub fn replay(texts: Vec<Vec<TokenId>>) -> Self {
        let mut info = ModelInfo::new("replay", "replay", 729);
        info.stop_tokens = vec![1];
        let capabilities = Capabilities::new(1, 1024).with_logits(true).with_rewind(true);
        Self::sure(info, capabilities, move |tokens| {
            let text = texts.iter().find(|text| text.starts_with(tokens));
            text.and_then(|text| text.get(tokens.len())).copied().unwrap_or(1)
        })
    }

    /// One that answers as the oracle does.
    pub fn oracle() -> Self {
        Self::replay(oracle().into_iter().map(|case| [case.prompt, case.greedy].concat()).collect())
    }

    /// It, with the bundled model's tokenizer.
    pub fn model(&self) -> mlxcel_session::Model {
        let tokenizer = Tokenizer::open(storyteller()).unwrap();
        mlxcel_session::Model::from_parts(Arc::new(self.clone()), tokenizer)
    }
}
