//! A model that says one text after any prompt, with the tokenizer and the chat template of a family.

#[path = "../../../mlxcel-session/tests/support/scripted.rs"]
#[allow(dead_code, missing_docs, unreachable_pub)]
mod support;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use mlxcel_session::{Capabilities, Engine, Model, ModelInfo, TokenId, Tokenizer};
use serde_json::{Value, json};

/// The special tokens of gpt-oss.
const HARMONY: [&str; 7] =
    ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>", "<|constrain|>"];

/// What a family of models has.
#[derive(Clone, Copy)]
pub(crate) struct Family {
    /// The name of its chat template among the fixtures.
    pub(crate) template: &'static str,
    tokens: &'static [&'static str],
    /// The token that ends an answer.
    end: &'static str,
}

pub(crate) const GPT_OSS: Family = Family { template: "gpt_oss", tokens: &HARMONY, end: "<|return|>" };
pub(crate) const QWEN3: Family = Family {
    template: "qwen3",
    tokens: &["<think>", "</think>", "<|im_start|>", "<|im_end|>"],
    end: "<|im_end|>",
};
/// Its template opens the tag of the reasoning.
pub(crate) const DEEPSEEK: Family = Family {
    template: "deepseek",
    tokens: &["<think>", "</think>", "<｜end▁of▁sentence｜>"],
    end: "<｜end▁of▁sentence｜>",
};
pub(crate) const LLAMA3: Family = Family { template: "llama3", tokens: &["<|eot_id|>"], end: "<|eot_id|>" };
pub(crate) const MISTRAL: Family =
    Family { template: "mistral", tokens: &["[TOOL_CALLS]", "[INST]", "[/INST]", "</s>"], end: "</s>" };

/// A model that says one text.
pub(crate) struct Scripted {
    model: support::Scripted,
    tokenizer: Tokenizer,
}

impl Scripted {
    /// One of `family` that answers `text`.
    pub(crate) fn new(family: Family, text: &str) -> Self {
        let tokenizer = tokenizer(family);
        let mut info = ModelInfo::new("scripted", "scripted", tokenizer.vocabulary_size());
        info.stop_tokens = vec![tokenizer.token_id(family.end).unwrap()];
        let answer = tokenizer.encode(&format!("{text}{}", family.end), false).unwrap();
        let capabilities = Capabilities::new(1, 4096).with_logits(true);
        let model = support::Scripted::sure(info, capabilities, move |tokens| {
            let said = (0..answer.len()).rev().find(|&length| tokens.ends_with(&answer[..length]));
            answer[said.unwrap()]
        });
        Self { model, tokenizer }
    }

    /// The same as an encoder, which generates no text.
    pub(crate) fn encoder(mut self) -> Self {
        self.model.capabilities =
            Capabilities::new(1, 4096).with_generation(false).with_hidden_states(Some(4));
        self
    }

    pub(crate) fn engine(&self) -> Engine {
        let model = Model::from_parts(Arc::new(self.model.clone()), Some(self.tokenizer.clone()));
        Engine::new(model).unwrap()
    }

    /// The text that it was fed since the last call.
    pub(crate) fn take_fed(&self) -> String {
        let fed = std::mem::take(&mut *self.model.fed.lock().unwrap());
        let tokens: Vec<TokenId> = fed.into_iter().flat_map(|(_, tokens)| tokens).collect();
        self.tokenizer.decode(&tokens, false).unwrap()
    }
}

/// The bundled tokenizer with the tokens and the template of a family.
fn tokenizer(family: Family) -> Tokenizer {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = fs::read(root.join("examples/models/storyteller/tokenizer.json")).unwrap();
    let mut file: Value = serde_json::from_slice(&file).unwrap();
    for token in family.tokens {
        file["added_tokens"].as_array_mut().unwrap().push(json!({
            "id": 0, "content": token, "special": !token.contains("think"), "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false,
        }));
    }
    fs::write(folder.path().join("tokenizer.json"), file.to_string()).unwrap();
    let config = json!({ "bos_token": family.end, "eos_token": family.end });
    fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    let template = format!("mlxcel-session/tests/fixtures/chat_templates/{}.jinja", family.template);
    fs::copy(root.join(template), folder.path().join("chat_template.jinja")).unwrap();
    Tokenizer::open(folder.path()).unwrap()
}
