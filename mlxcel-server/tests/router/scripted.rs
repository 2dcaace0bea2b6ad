//! A model that says one text after any prompt, with the tokenizer and the chat template of a family.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use mlxcel_session::mlxcel_core::{
    Answer, Capabilities, Control, Error, ErrorKind, InferenceSession, Model, ModelInfo, Result, Row,
    RowResult, SampledToken, SequenceId, SequenceState, SessionOptions, SessionStats, StepOutput,
};
use mlxcel_session::{Engine, TokenId, Tokenizer};
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
#[derive(Clone)]
pub(crate) struct Scripted {
    info: ModelInfo,
    capabilities: Capabilities,
    tokenizer: Tokenizer,
    answer: Vec<TokenId>,
    /// All tokens that it was fed.
    fed: Arc<Mutex<Vec<TokenId>>>,
}

impl Scripted {
    /// One of `family` that answers `text`.
    pub(crate) fn new(family: Family, text: &str) -> Self {
        let tokenizer = tokenizer(family);
        let mut info = ModelInfo::new("scripted", "scripted", tokenizer.vocabulary_size());
        info.stop_tokens = vec![tokenizer.token_id(family.end).unwrap()];
        let answer = tokenizer.encode(&format!("{text}{}", family.end), false).unwrap();
        let capabilities = Capabilities::new(1, 4096).with_logits(true);
        Self { info, capabilities, tokenizer, answer, fed: Arc::default() }
    }

    /// The same as an encoder, which generates no text.
    pub(crate) fn encoder(mut self) -> Self {
        self.capabilities = Capabilities::new(1, 4096).with_generation(false).with_hidden_states(Some(4));
        self
    }

    pub(crate) fn engine(&self) -> Engine {
        let model = mlxcel_session::Model::from_parts(Arc::new(self.clone()), Some(self.tokenizer.clone()));
        Engine::new(model).unwrap()
    }

    /// The text that it was fed since the last call.
    pub(crate) fn take_fed(&self) -> String {
        let fed = std::mem::take(&mut *self.fed.lock().unwrap());
        self.tokenizer.decode(&fed, false).unwrap()
    }

    /// What follows `tokens`.
    fn next(&self, tokens: &[TokenId]) -> TokenId {
        let said = (0..self.answer.len()).rev().find(|&length| tokens.ends_with(&self.answer[..length]));
        self.answer[said.unwrap()]
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

impl Model for Scripted {
    fn info(&self) -> &ModelInfo {
        &self.info
    }
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }
    fn open_session(&self, _: &SessionOptions) -> Result<Box<dyn InferenceSession>> {
        Ok(Box::new(Session { model: self.clone(), open: BTreeMap::new(), opened: 0 }))
    }
}

struct Session {
    model: Scripted,
    open: BTreeMap<SequenceId, Vec<TokenId>>,
    opened: u64,
}

impl Session {
    fn row(&mut self, row: &Row<'_>) -> Result<RowResult> {
        let tokens = self.open.get_mut(&row.sequence).ok_or_else(no_sequence)?;
        self.model.fed.lock().unwrap().extend_from_slice(row.tokens);
        tokens.extend_from_slice(row.tokens);
        let next = self.model.next(tokens);
        Ok(match row.want.answer {
            Answer::Logits => {
                let mut logits = vec![0.0; self.model.info.vocabulary_size];
                logits[next as usize] = 30.0;
                RowResult::Logits(vec![logits])
            }
            _ => RowResult::Tokens(vec![SampledToken::new(next, -0.25)]),
        })
    }
}

impl InferenceSession for Session {
    fn capabilities(&self) -> &Capabilities {
        &self.model.capabilities
    }

    fn open(&mut self) -> Result<SequenceId> {
        self.opened += 1;
        let sequence = SequenceId::new(self.opened);
        self.open.insert(sequence, Vec::new());
        Ok(sequence)
    }

    fn close(&mut self, sequence: SequenceId) -> Result<()> {
        self.open.remove(&sequence).map(drop).ok_or_else(no_sequence)
    }

    fn state(&self, sequence: SequenceId) -> Result<SequenceState> {
        let tokens = self.open.get(&sequence).ok_or_else(no_sequence)?;
        Ok(SequenceState::new(tokens.len(), self.model.capabilities.context))
    }

    fn step(&mut self, rows: &[Row<'_>], _: &Control<'_>, out: &mut StepOutput) -> Result<()> {
        out.clear();
        for row in rows {
            let result = self.row(row);
            out.push(result);
        }
        Ok(())
    }

    fn stats(&self) -> SessionStats {
        SessionStats::default()
    }
}

fn no_sequence() -> Error {
    Error::new(ErrorKind::NotFound, "look up sequence", "the sequence is not open")
}
