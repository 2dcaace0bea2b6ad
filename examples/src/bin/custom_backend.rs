//! An engine of your own, whole: all but `main` needs `mlxcel-core` alone, and `mlxcel-session` drives it like any other.
//! Its model has read one text. What followed there after the same tokens is likely to follow again.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher as Hasher};
use std::sync::Arc;

use mlxcel_core::ErrorKind::{Cancelled, CapacityExceeded, InvalidInput, NotFound, Unsupported};
use mlxcel_core::*;

/// The engine, and also its model, since there is nothing to load: the text, what it is, what it claims.
#[derive(Clone)]
pub(crate) struct Reader {
    text: Arc<[TokenId]>,
    info: ModelInfo,
    claimed: Capabilities,
}

impl Reader {
    pub(crate) fn new(text: Vec<TokenId>, vocabulary: usize) -> Self {
        let mut info = ModelInfo::new("reader", "text", vocabulary);
        info.fingerprint = BuildHasherDefault::<Hasher>::default().hash_one((&text, vocabulary)).to_string();
        let text = text.into_iter().filter(|&token| (token as usize) < vocabulary).collect();
        Self { text, info, claimed: Capabilities::new(4, 512).with_logits(true) }
    }
}

impl Backend for Reader {
    fn name(&self) -> &str {
        "reader"
    }
    fn load(&self, _: &ModelSource, options: &LoadOptions) -> Result<Arc<dyn Model>> {
        let (capacity, sequences) = (options.capacity.unwrap_or(512), options.sequences.unwrap_or(4));
        ensure(!options.cancel.as_ref().is_some_and(CancelToken::is_cancelled), Cancelled, "cancel")?;
        ensure(capacity > 0, InvalidInput, "capacity")?;
        ensure(sequences > 0, InvalidInput, "sequences")?;
        ensure(options.threads.is_none_or(|threads| threads == 1), InvalidInput, "threads")?;
        ensure(options.device.is_none(), InvalidInput, "device")?;
        let mut model = self.clone();
        (model.info.capacity, model.info.precision) = (capacity, options.precision);
        (model.claimed.context, model.claimed.sequences) = (capacity, sequences);
        Ok(Arc::new(model))
    }
}

impl Model for Reader {
    fn info(&self) -> &ModelInfo {
        &self.info
    }
    fn capabilities(&self) -> &Capabilities {
        &self.claimed
    }
    fn open_session(&self, options: &SessionOptions) -> Result<Box<dyn InferenceSession>> {
        let mut model = self.clone();
        model.claimed.context = options.capacity.unwrap_or(self.info.capacity);
        ensure((1..=self.info.capacity).contains(&model.claimed.context), InvalidInput, "capacity")?;
        Ok(Box::new(Reading { model, held: BTreeMap::new(), opened: 0, stats: SessionStats::default() }))
    }
}

/// The session: the tokens of each sequence, in place of a KV cache.
struct Reading {
    model: Reader,
    held: BTreeMap<SequenceId, Vec<TokenId>>,
    opened: u64,
    stats: SessionStats,
}

impl Reading {
    fn check(&self, row: &Row<'_>, earlier: &[Row<'_>]) -> Result<()> {
        let room = self.state(row.sequence)?.remaining();
        let known = row.tokens.iter().all(|&token| (token as usize) < self.model.info.vocabulary_size);
        let alone = earlier.iter().all(|other| other.sequence != row.sequence);
        ensure(alone, InvalidInput, "sequence")?;
        ensure(known && !row.tokens.is_empty(), InvalidInput, "tokens")?;
        let greedy = matches!(row.want, Want::Next { plan, mask: None, top: 0 } if plan.is_greedy());
        ensure(greedy || matches!(row.want, Want::Nothing | Want::Logits), Unsupported, "want")?;
        ensure(row.tokens.len() <= room, CapacityExceeded, "tokens")
    }
    fn run(&mut self, row: &Row<'_>) -> RowResult {
        let held = self.held.entry(row.sequence).or_default();
        held.extend_from_slice(row.tokens);
        self.stats.passes += 1;
        self.stats.tokens += row.tokens.len() as u64;
        // How often each token comes in the text; it counts more, the more tokens in front of it are those here.
        let mut seen = vec![0.01f64; self.model.info.vocabulary_size];
        for (index, &next) in self.model.text.iter().enumerate() {
            let before = self.model.text[..index].iter().rev().zip(held.iter().rev()).take(8);
            seen[next as usize] += 8f64.powi(before.take_while(|(a, b)| a == b).count() as i32);
        }
        let logits: Vec<f32> = seen.iter().map(|seen| seen.ln() as f32).collect();
        let best = (1..seen.len()).fold(0, |best, t| if logits[t] > logits[best] { t } else { best });
        let logprob = (seen[best] / seen.iter().sum::<f64>()).ln();
        match row.want {
            Want::Next { .. } => RowResult::Token(SampledToken::new(best as TokenId, logprob as f32)),
            Want::Logits => RowResult::Logits(logits),
            _ => RowResult::Extended,
        }
    }
}

impl InferenceSession for Reading {
    fn capabilities(&self) -> &Capabilities {
        &self.model.claimed
    }
    fn open(&mut self) -> Result<SequenceId> {
        ensure(self.held.len() < self.model.claimed.sequences, CapacityExceeded, "sequences")?;
        self.opened += 1;
        self.held.insert(SequenceId::new(self.opened), Vec::new());
        Ok(SequenceId::new(self.opened))
    }
    fn close(&mut self, sequence: SequenceId) -> Result<()> {
        self.state(sequence).map(|_| drop(self.held.remove(&sequence)))
    }
    fn state(&self, sequence: SequenceId) -> Result<SequenceState> {
        let tokens = self.held.get(&sequence).map(Vec::len);
        ensure(tokens.is_some(), NotFound, "sequence")?;
        Ok(SequenceState::new(tokens.unwrap_or(0), self.model.claimed.context))
    }
    fn step(&mut self, rows: &[Row<'_>], control: &Control<'_>, out: &mut StepOutput) -> Result<()> {
        out.clear();
        for (index, row) in rows.iter().enumerate() {
            let ready = self.check(row, &rows[..index]).and_then(|()| control.check("step"));
            out.push(ready.map(|()| self.run(row)));
        }
        ensure(!rows.is_empty(), InvalidInput, "rows")
    }
    fn stats(&self) -> SessionStats {
        self.stats
    }
}

fn ensure(holds: bool, kind: ErrorKind, field: &'static str) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::new(kind, "read", "it is refused").with_context("field", field)) }
}

fn main() -> Result<()> {
    let source = mlxcel_examples::bundled::storyteller();
    let Some(tokenizer) = mlxcel_session::Tokenizer::from_source(&source)? else { return Ok(()) };
    let mut text = tokenizer.encode("The fox saw a red ball. The fox ran to the ball and smiled.", false)?;
    text.extend(tokenizer.special_token_id("eos_token"));
    let engine = Reader::new(text, tokenizer.vocabulary_size()).load(&source, &LoadOptions::default())?;
    let model = mlxcel_session::Model::from_parts(engine, tokenizer);
    for piece in model.generate("The fox", &mlxcel_session::Options::default())? {
        std::io::Write::write_all(&mut std::io::stdout(), piece?.as_bytes()).ok();
    }
    Ok(())
}
