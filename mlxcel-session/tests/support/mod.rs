//! An engine that answers from a list of texts, and the bundled model's oracle to fill the list with.
#![allow(dead_code, missing_docs, unreachable_pub)]

mod scripted;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mlxcel_session::mlxcel_core::{Capabilities, ModelInfo, TokenId};
use mlxcel_session::{CancelToken, DraftContext, DraftSource, Drafter, Message, Prompt, Result, Tokenizer};
use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;
use serde_json::{Value, json};

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

impl Case {
    /// The prompt in the form that the case has.
    pub fn input(&self) -> Prompt<'_> {
        let text = self.text.as_deref().map(Prompt::Text);
        self.messages.as_deref().map(Prompt::Chat).or(text).unwrap_or(Prompt::Tokens(&self.prompt))
    }
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

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// What transformers and Jinja make of templates; `fixtures/chat_templates.py` says how.
pub fn chat_expectations() -> Value {
    serde_json::from_slice(&fs::read(fixtures().join("chat_templates.json")).unwrap()).unwrap()
}

/// A published chat template.
pub fn published_template(style: &str) -> String {
    fs::read_to_string(fixtures().join(format!("chat_templates/{style}.jinja"))).unwrap()
}

/// All of them, by name.
pub fn published_templates() -> Vec<(String, String)> {
    let entries = fs::read_dir(fixtures().join("chat_templates")).unwrap();
    let mut styles: Vec<_> = entries
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .map(|style| (style.clone(), published_template(&style)))
        .collect();
    styles.sort();
    assert!(styles.len() >= 11);
    styles
}

/// An added token as `tokenizer.json` has it.
pub fn added_token(id: usize, content: &str, special: bool) -> Value {
    json!({
        "id": id, "content": content, "special": special, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false,
    })
}

/// The bundled tokenizer's file.
pub fn tokenizer_file() -> Value {
    serde_json::from_slice(&fs::read(storyteller().join("tokenizer.json")).unwrap()).unwrap()
}

/// The tokenizer of a folder with these files.
pub fn tokenizer_of(files: &[(&str, &str)]) -> Result<Tokenizer> {
    let folder = tempfile::tempdir().unwrap();
    files.iter().for_each(|(name, content)| fs::write(folder.path().join(name), content).unwrap());
    Tokenizer::open(folder.path())
}

/// A tokenizer with a template, and nothing else in its folder.
pub fn tokenizer_with(file: &Value, template: &str) -> Tokenizer {
    let file = file.to_string();
    tokenizer_of(&[("tokenizer.json", &file), ("chat_template.jinja", template)]).unwrap()
}

/// A vocabulary of these tokens, in the order of their ids, and of a token for each byte.
pub fn vocabulary<'t>(tokens: impl IntoIterator<Item = &'t str>) -> Value {
    let bytes = (0..=255).map(|byte| format!("<0x{byte:02X}>"));
    tokens.into_iter().map(str::to_owned).chain(bytes).zip((0..).map(Value::from)).collect()
}

/// A token that is cancelled.
pub fn cancelled() -> CancelToken {
    let cancel = CancelToken::new();
    cancel.cancel();
    cancel
}

/// What this thread has computed: unlike the time of a clock, it does not depend on what else the machine
/// does.
pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Numbers that look random and are the same each time: splitmix64.
pub struct Chance(pub u64);

impl Chance {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    pub fn below(&mut self, most: usize) -> usize {
        (self.next() % most.max(1) as u64) as usize
    }

    pub fn one_in(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }
}

/// The number of splitmix64 at a state.
pub fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// Drafts a known text after a prompt of this length, with one wrong token in `wrong`.
#[derive(Clone, Debug)]
pub struct Replay {
    pub text: Vec<TokenId>,
    pub prompt: usize,
    pub wrong: usize,
}

impl DraftSource for Replay {
    fn drafter(&self, context: &DraftContext<'_>) -> Result<Box<dyn Drafter>> {
        assert!(context.vocabulary_size > 0);
        Ok(Box::new(self.clone()))
    }
}

impl Drafter for Replay {
    fn draft(&mut self, tokens: &[TokenId], most: usize) -> Result<Vec<TokenId>> {
        let next = self.text.iter().enumerate().skip(tokens.len() - self.prompt).take(most);
        let is_wrong = |at: usize| at % self.wrong == self.wrong - 1;
        Ok(next.map(|(at, &token)| if is_wrong(at) { token ^ 1 } else { token }).collect())
    }
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
