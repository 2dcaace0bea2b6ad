//! An engine of your own, whole: all but `main` needs `mlxcel-core` alone, and `mlxcel-session` drives it
//! like any other. Its model has read one text. What followed there after the same tokens is likely to follow
//! again.
#![forbid(unsafe_code)]

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher as Hasher};
use std::sync::Arc;

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
        let checked = OptionSupport::new(self.claimed.context, self.claimed.sequences)
            .with_threads(1)
            .check(options)?;
        let mut model = self.clone();
        (model.info.capacity, model.info.precision) = (checked.capacity, checked.precision);
        (model.claimed.context, model.claimed.sequences) = (checked.capacity, checked.sequences);
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
        let mut claimed = self.claimed.clone();
        claimed.context = options.capacity_within(self.info.capacity)?;
        let held = SequenceTable::new(claimed, self.info.vocabulary_size, Vec::len);
        Ok(Box::new(Reading { model: self.clone(), held, stats: SessionStats::default() }))
    }
}

/// The session: the tokens of each sequence, in place of a KV cache.
struct Reading {
    model: Reader,
    held: SequenceTable<Vec<TokenId>>,
    stats: SessionStats,
}

impl Reading {
    fn run(&mut self, row: &StepRow<'_>) -> Result<RowResult> {
        let (held, tokens) = (self.held.get_mut("step", row.sequence())?, row.next(row.remaining()));
        held.extend_from_slice(tokens);
        self.stats.passes += 1;
        self.stats.tokens += tokens.len() as u64;
        // How often each token comes in the text; it counts more if more of the preceding tokens match.
        let mut seen = vec![0.01f64; self.model.info.vocabulary_size];
        for (index, &next) in self.model.text.iter().enumerate() {
            let before = self.model.text[..index].iter().rev().zip(held.iter().rev()).take(8);
            seen[next as usize] += 8f64.powi(before.take_while(|(a, b)| a == b).count() as i32);
        }
        let logits: Vec<f32> = seen.iter().map(|seen| seen.ln() as f32).collect();
        let best = (1..seen.len()).fold(0, |best, t| if logits[t] > logits[best] { t } else { best });
        let logprob = (seen[best] / seen.iter().sum::<f64>()).ln();
        Ok(match row.want().answer {
            Answer::Token { .. } => {
                RowResult::Tokens(vec![SampledToken::new(best as TokenId, logprob as f32)])
            }
            Answer::Logits => RowResult::Logits(vec![logits]),
            _ => RowResult::Extended,
        })
    }
}

impl InferenceSession for Reading {
    fn capabilities(&self) -> &Capabilities {
        self.held.capabilities()
    }
    fn open(&mut self) -> Result<SequenceId> {
        self.held.open("open sequence", Vec::new())
    }
    fn close(&mut self, sequence: SequenceId) -> Result<()> {
        self.held.close(sequence).map(drop)
    }
    fn state(&self, sequence: SequenceId) -> Result<SequenceState> {
        self.held.state(sequence)
    }
    fn step(&mut self, rows: &[Row<'_>], control: &Control<'_>, out: &mut StepOutput) -> Result<()> {
        let mut rows: StepRows<'_> = self.held.begin(rows, out)?;
        while rows.wait(control) {
            // Each row is a pass, with all of its tokens.
            let Some(row) = rows.iter_mut().find(|row| row.is_waiting()) else { break };
            let result = self.run(row);
            self.held.absorb(row, row.remaining(), result);
        }
        rows.finish(out);
        Ok(())
    }
    fn stats(&self) -> SessionStats {
        self.stats
    }
}

pub(crate) fn main() -> Result<()> {
    // Only the tokenizer is of a checkpoint.
    let source = ModelSource::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/models/storyteller"));
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
