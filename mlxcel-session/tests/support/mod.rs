//! An engine that answers from a list of texts, and the bundled model's oracle to fill the list with.
#![allow(dead_code, missing_docs, unreachable_pub)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use mlxcel_session::mlxcel_core::{
    Answer, Backend, Capabilities, Control, Error, ErrorKind, InferenceSession, LoadOptions, Model,
    ModelInfo, ModelSource, Result, Row, RowResult, SampledToken, SequenceId, SequenceState, SessionOptions,
    SessionStats, StepOutput, TokenId,
};
use mlxcel_session::{Message, Tokenizer};
use serde::Deserialize;

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

/// Every row of every session: the position that it began at, and its tokens.
type Fed = Vec<(usize, Vec<TokenId>)>;

/// An engine whose model says what follows in the first of `texts` that begins with the sequence, and
/// otherwise token 1.
#[derive(Clone)]
pub struct Replay {
    pub info: ModelInfo,
    pub capabilities: Capabilities,
    pub texts: Arc<Vec<Vec<TokenId>>>,
    pub fed: Arc<Mutex<Fed>>,
    /// Whether its sessions have no room for another sequence.
    pub is_full: Arc<AtomicBool>,
}

impl Replay {
    pub fn new(texts: Vec<Vec<TokenId>>) -> Self {
        let mut info = ModelInfo::new("replay", "replay", 729);
        info.stop_tokens = vec![1];
        Self {
            info,
            capabilities: Capabilities::new(1, 1024).with_logits(true).with_rewind(true),
            texts: Arc::new(texts),
            fed: Arc::default(),
            is_full: Arc::default(),
        }
    }

    /// One that answers as the oracle does.
    pub fn oracle() -> Self {
        Self::new(oracle().into_iter().map(|case| [case.prompt, case.greedy].concat()).collect())
    }

    pub fn with_capabilities(mut self, capabilities: Capabilities) -> Self {
        self.capabilities = capabilities;
        self
    }

    /// It, with the bundled model's tokenizer.
    pub fn model(&self) -> mlxcel_session::Model {
        let tokenizer = Tokenizer::open(storyteller()).unwrap();
        mlxcel_session::Model::from_parts(Arc::new(self.clone()), tokenizer)
    }
}

impl Backend for Replay {
    fn name(&self) -> &str {
        "replay"
    }
    fn load(&self, _: &ModelSource, _: &LoadOptions) -> Result<Arc<dyn Model>> {
        Ok(Arc::new(self.clone()))
    }
}

impl Model for Replay {
    fn info(&self) -> &ModelInfo {
        &self.info
    }
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }
    fn open_session(&self, _: &SessionOptions) -> Result<Box<dyn InferenceSession>> {
        Ok(Box::new(ReplaySession { engine: self.clone(), open: BTreeMap::new(), opened: 0 }))
    }
}

struct ReplaySession {
    engine: Replay,
    open: BTreeMap<SequenceId, Vec<TokenId>>,
    opened: u64,
}

impl ReplaySession {
    fn row(&mut self, row: &Row<'_>) -> Result<RowResult> {
        let capacity = self.engine.capabilities.context;
        let tokens = self.open.get_mut(&row.sequence).ok_or_else(no_sequence)?;
        assert!(tokens.len() + row.tokens.len() <= capacity, "the caller checks the capacity");
        self.engine.fed.lock().unwrap().push((tokens.len(), row.tokens.to_vec()));
        tokens.extend_from_slice(row.tokens);
        let text = self.engine.texts.iter().find(|text| text.starts_with(tokens));
        let token = text.and_then(|text| text.get(tokens.len())).copied().unwrap_or(1);
        Ok(match row.want.answer {
            Answer::Logits => {
                let mut logits = vec![0.0; self.engine.info.vocabulary_size];
                logits[token as usize] = 20.0;
                RowResult::Logits(vec![logits])
            }
            _ => RowResult::Tokens(vec![SampledToken::new(token, -0.25)]),
        })
    }
}

impl InferenceSession for ReplaySession {
    fn capabilities(&self) -> &Capabilities {
        &self.engine.capabilities
    }

    fn open(&mut self) -> Result<SequenceId> {
        let is_full = self.engine.is_full.load(Ordering::SeqCst);
        if is_full || self.open.len() == self.engine.capabilities.sequences {
            return Err(Error::new(ErrorKind::CapacityExceeded, "open", "the session is full"));
        }
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
        Ok(SequenceState::new(tokens.len(), self.engine.capabilities.context))
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

    fn rewind(&mut self, sequence: SequenceId, position: usize) -> Result<()> {
        Capabilities::require(self.engine.capabilities.rewind, "rewind", "rewind")?;
        self.open.get_mut(&sequence).ok_or_else(no_sequence)?.truncate(position);
        Ok(())
    }
}

fn no_sequence() -> Error {
    Error::new(ErrorKind::NotFound, "look up sequence", "the sequence is not open")
}
