//! A model of random logits, and what its texts are asked to be.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use mlxcel_session::mlxcel_core::Control;
use mlxcel_session::mlxcel_core::{
    Answer, InferenceSession, Model as EngineModel, Row, RowResult, SequenceId, SequenceState,
    SessionOptions, StepOutput,
};
use mlxcel_session::{
    Capabilities, Completion, Error, ErrorKind, Grammar, Model, ModelInfo, Options, Result, SampledToken,
    SessionStats, TokenId, Tokenizer,
};

pub fn storyteller() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../examples/models/storyteller")
}

pub fn tokenizer() -> Tokenizer {
    Tokenizer::open(storyteller()).unwrap()
}

/// A random generator: splitmix64.
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

fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// An engine whose logits are a random function of the last token and the position. Tokens that end something
/// are more likely than others, for
/// texts to end.
#[derive(Clone)]
pub struct Random {
    info: ModelInfo,
    capabilities: Capabilities,
    bias: Arc<Vec<f32>>,
    seed: u64,
    /// How many tokens each row had.
    pub rows: Arc<Mutex<Vec<usize>>>,
}

impl Random {
    pub fn new(tokenizer: &Tokenizer, seed: u64) -> Self {
        let mut info = ModelInfo::new("random", "random", tokenizer.vocabulary_size());
        info.stop_tokens = tokenizer.special_token_id("eos_token").into_iter().collect();
        let bias = |token| {
            let bytes = tokenizer.token_bytes(token).unwrap_or_default();
            let ends = bytes.iter().any(|byte| b"\"}]".contains(byte)) && bytes.len() < 3;
            let rare = bytes.len() == 1 && bytes[0].is_ascii_digit() || bytes.contains(&b',');
            if ends || info.stop_tokens.contains(&token) {
                7.0
            } else if rare {
                -2.0
            } else {
                0.0
            }
        };
        let bias = (0..info.vocabulary_size as TokenId).map(bias).collect();
        let capabilities = Capabilities::new(4, 4096).with_logits(true);
        Self { info, capabilities, bias: Arc::new(bias), seed, rows: Arc::default() }
    }

    /// It, with `tokenizer`.
    pub fn model(&self, tokenizer: &Tokenizer) -> Model {
        Model::from_parts(Arc::new(self.clone()), tokenizer.clone())
    }
}

impl EngineModel for Random {
    fn info(&self) -> &ModelInfo {
        &self.info
    }
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }
    fn open_session(&self, _: &SessionOptions) -> Result<Box<dyn InferenceSession>> {
        Ok(Box::new(RandomSession { engine: self.clone(), open: BTreeMap::new(), opened: 0 }))
    }
}

struct RandomSession {
    engine: Random,
    open: BTreeMap<SequenceId, Vec<TokenId>>,
    opened: u64,
}

impl RandomSession {
    fn row(&mut self, row: &Row<'_>) -> Result<RowResult> {
        let tokens = self.open.get_mut(&row.sequence).ok_or_else(no_sequence)?;
        tokens.extend_from_slice(row.tokens);
        self.engine.rows.lock().unwrap().push(row.tokens.len());
        let seed = mix(self.engine.seed ^ (tokens.len() as u64) << 32 ^ u64::from(*tokens.last().unwrap()));
        let logits = self.engine.bias.iter().enumerate().map(|(token, bias)| {
            // The sum of four uniform draws is near enough to a normal one.
            let draw = mix(seed ^ token as u64);
            let sum: u64 = (0..4).map(|part| draw >> (16 * part) & 0xffff).sum();
            (sum as f32 / 65536.0 - 2.0) * 3.0 + bias
        });
        Ok(match row.want.answer {
            Answer::Nothing => RowResult::Extended,
            Answer::Logits => RowResult::Logits(vec![logits.collect()]),
            _ => RowResult::Tokens(vec![SampledToken::new(0, 0.0)]),
        })
    }
}

impl InferenceSession for RandomSession {
    fn capabilities(&self) -> &Capabilities {
        &self.engine.capabilities
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
}

fn no_sequence() -> Error {
    Error::new(ErrorKind::NotFound, "look up sequence", "the sequence is not open")
}

/// Options of draws that say all sorts of things.
pub fn hot(tokens: usize, seed: u64) -> Options {
    Options::new(tokens).with_temperature(1.5).with_seed(seed)
}

/// What a model of random logits says under `grammar`.
pub fn say(tokenizer: &Tokenizer, grammar: Grammar, tokens: usize, seed: u64) -> Result<Completion> {
    let model = Random::new(tokenizer, seed).model(tokenizer);
    model.generate("x", &hot(tokens, seed).with_grammar(grammar))?.complete()
}
