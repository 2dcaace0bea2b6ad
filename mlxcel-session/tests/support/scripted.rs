//! An engine whose answers are a function of the tokens of a sequence.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use mlxcel_session::mlxcel_core::{
    Answer, Backend, Capabilities, Control, Error, ErrorKind, InferenceSession, LoadOptions, Model,
    ModelInfo, ModelSource, Result, Row, RowResult, SampledToken, SequenceId, SequenceState, SessionOptions,
    SessionStats, StepOutput, TokenId,
};

/// Every row of every session: the position that it began at, and its tokens.
pub type Fed = Vec<(usize, Vec<TokenId>)>;

/// Logits of as many tokens as a model knows, after the tokens of a sequence.
type Logits = dyn Fn(&[TokenId], usize) -> Vec<f32> + Send + Sync;

/// An engine whose logits are a function of the tokens of a sequence. Tokens of its own choice are the most
/// likely ones, with the log probability -0.25.
#[derive(Clone)]
pub struct Scripted {
    pub info: ModelInfo,
    pub capabilities: Capabilities,
    pub fed: Arc<Mutex<Fed>>,
    /// Whether its sessions have no room for another sequence.
    pub is_full: Arc<AtomicBool>,
    logits: Arc<Logits>,
}

impl Scripted {
    pub fn new(
        info: ModelInfo,
        capabilities: Capabilities,
        logits: impl Fn(&[TokenId], usize) -> Vec<f32> + Send + Sync + 'static,
    ) -> Self {
        Self { info, capabilities, fed: Arc::default(), is_full: Arc::default(), logits: Arc::new(logits) }
    }

    /// One that is almost sure of what `next` says.
    pub fn sure(
        info: ModelInfo,
        capabilities: Capabilities,
        next: impl Fn(&[TokenId]) -> TokenId + Send + Sync + 'static,
    ) -> Self {
        Self::new(info, capabilities, move |tokens, vocabulary| {
            let mut logits = vec![0.0; vocabulary];
            logits[next(tokens) as usize] = 30.0;
            logits
        })
    }

    pub fn with_capabilities(mut self, capabilities: Capabilities) -> Self {
        self.capabilities = capabilities;
        self
    }
}

impl Backend for Scripted {
    fn name(&self) -> &str {
        "scripted"
    }
    fn load(&self, _: &ModelSource, _: &LoadOptions) -> Result<Arc<dyn Model>> {
        Ok(Arc::new(self.clone()))
    }
}

impl Model for Scripted {
    fn info(&self) -> &ModelInfo {
        &self.info
    }
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }
    fn open_session(&self, _: &SessionOptions) -> Result<Box<dyn InferenceSession>> {
        Ok(Box::new(ScriptedSession { engine: self.clone(), open: BTreeMap::new(), opened: 0 }))
    }
}

struct ScriptedSession {
    engine: Scripted,
    open: BTreeMap<SequenceId, Vec<TokenId>>,
    opened: u64,
}

impl ScriptedSession {
    fn row(&mut self, row: &Row<'_>) -> Result<RowResult> {
        let Scripted { info, capabilities, fed, logits, .. } = &self.engine;
        let tokens = self.open.get_mut(&row.sequence).ok_or_else(no_sequence)?;
        assert!(tokens.len() + row.tokens.len() <= capabilities.context, "the caller checks the capacity");
        fed.lock().unwrap().push((tokens.len(), row.tokens.to_vec()));
        tokens.extend_from_slice(row.tokens);
        let logits = || logits(tokens, info.vocabulary_size);
        Ok(match row.want.answer {
            Answer::Nothing => RowResult::Extended,
            Answer::Logits => RowResult::Logits(vec![logits()]),
            _ => {
                let token = (0..).zip(logits()).max_by(|(_, a), (_, b)| a.total_cmp(b)).unwrap().0;
                RowResult::Tokens(vec![SampledToken::new(token, -0.25)])
            }
        })
    }
}

impl InferenceSession for ScriptedSession {
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
