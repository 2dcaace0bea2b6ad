//! What engines compute: whole prompts, chunks and batches, against a walk in plain loops.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use mlxcel_core::{
    Backend, Control, Error, ErrorKind, InferenceSessionExt, LoadOptions, Model, Precision, Row, RowResult,
    SequenceId, SessionOptions, StepOutput,
};
use mlxcel_models::{Checkpoint, Decoder};

use super::draw::Random;
use crate::naive;

/// The largest difference of logits, relative to the largest magnitude, that roundings of float32 explain.
const LOGITS: f32 = 1e-4;
/// The relative error of a sum of float32.
const ROUNDING: f32 = 1e-6;

/// Texts, and how they are fed.
#[derive(Clone)]
pub(crate) struct Script {
    /// The tokens of each sequence.
    pub(crate) texts: Vec<Vec<u32>>,
    /// The rows of each step: a sequence, and how many of its next tokens are fed.
    steps: Vec<Vec<(usize, usize)>>,
}

impl Script {
    /// Texts of tokens below `vocabulary`, the first of which is the longest, and chunks of them in random
    /// company.
    pub(crate) fn draw(random: &mut Random, vocabulary: usize, longest: usize, texts: usize) -> Self {
        let mut lengths = vec![longest];
        lengths.extend((1..texts).map(|_| 1 + random.below(longest.div_ceil(2))));
        let text = |length| (0..length).map(|_| random.below(vocabulary) as u32).collect();
        let texts: Vec<Vec<u32>> = lengths.iter().copied().map(text).collect();
        let mut left = lengths;
        let mut steps = Vec::new();
        while left.iter().any(|left| *left > 0) {
            let mut rows: Vec<_> = (0..texts.len()).filter(|text| left[*text] > 0).collect();
            // Some sequences wait.
            rows.retain(|_| !random.one_in(3));
            let row = |text: usize| {
                let tokens = if random.one_in(3) { 1 } else { 1 + random.below(left[text]) };
                left[text] -= tokens;
                (text, tokens)
            };
            let rows: Vec<_> = rows.into_iter().map(row).collect();
            if !rows.is_empty() {
                steps.push(rows);
            }
        }
        Self { texts, steps }
    }

    /// The same texts, of which only the first is run: whole, and then its last `tokens` one by one.
    pub(crate) fn short(mut self, tokens: usize) -> Self {
        self.texts.truncate(1);
        let length = self.texts[0].len();
        let tokens = tokens.min(length - 1);
        self.steps = vec![vec![(0, length - tokens)]];
        self.steps.extend(std::iter::repeat_n(vec![(0, 1)], tokens));
        self
    }
}

/// The logits of texts at each position, as if each were the last one of its sequence.
pub(crate) struct Expected<'a> {
    checkpoint: &'a Checkpoint,
    decoder: &'a Decoder,
    script: &'a Script,
    /// By text, of the shortest lengths first: the greatest length and the logits of the positions up to it.
    texts: Vec<Vec<(usize, Vec<Vec<f32>>)>>,
}

impl<'a> Expected<'a> {
    /// The walk's.
    pub(crate) fn of(
        checkpoint: &'a Checkpoint,
        decoder: &'a Decoder,
        script: &'a Script,
    ) -> Result<Self, Error> {
        let epochs = decoder.rope_epochs();
        let text = |text: &Vec<u32>| {
            // Frequencies of all positions change where a sequence becomes longer than some length.
            let mut ends: Vec<_> =
                (1..text.len()).filter(|end| epochs.at(*end) != epochs.at(end + 1)).collect();
            ends.push(text.len());
            let until = |end: usize| {
                let logits = naive::logits(checkpoint, decoder, &text[..end])?;
                Ok((end, logits.rows().map(<[f32]>::to_vec).collect()))
            };
            ends.into_iter().map(until).collect::<Result<Vec<_>, Error>>()
        };
        let texts = script.texts.iter().map(text).collect::<Result<_, _>>()?;
        Ok(Self { checkpoint, decoder, script, texts })
    }

    /// The logits of a text after so many tokens.
    pub(crate) fn after(&self, text: usize, tokens: usize) -> &[f32] {
        let (_, logits) = self.texts[text].iter().find(|(end, _)| tokens <= *end).unwrap();
        &logits[tokens - 1]
    }

    /// How far logits may differ: roundings, which are about those of weights, grow in deep networks, and tip
    /// a router's scales. The walk itself shows by how much, with weights that are a little different.
    fn tolerance(&self, text: usize, tokens: usize) -> f32 {
        let walked = naive::perturbed_logits(
            self.checkpoint,
            self.decoder,
            &self.script.texts[text][..tokens],
            ROUNDING,
        );
        let walked = walked.unwrap();
        LOGITS.max(4.0 * difference(walked.rows().last().unwrap(), self.after(text, tokens)))
    }

    /// Whether all logits are numbers.
    pub(crate) fn is_finite(&self) -> bool {
        let logits = self.texts.iter().flatten().flat_map(|(_, logits)| logits);
        logits.flatten().all(|logit| logit.is_finite())
    }
}

/// What came of a checkpoint on an engine.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome {
    /// All logits are equal, with the largest relative error.
    Equal(f32),
    /// The engine says what it does not support.
    Refused(String),
    /// Anything else.
    Defect(String),
}

/// Runs a script on an engine.
pub(crate) fn run(engine: &dyn Backend, folder: &Path, script: &Script, expected: &Expected<'_>) -> Outcome {
    let ran = catch_unwind(AssertUnwindSafe(|| match load(engine, folder, script) {
        Ok(model) => follow(&*model, script, expected).unwrap_or_else(|error| Outcome::Defect(chain(&error))),
        Err(error) => refusal(&error),
    }));
    ran.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Outcome::Defect(format!("panic: {}", text.unwrap_or_default()))
    })
}

/// A refusal names what is refused.
pub(crate) fn refusal(error: &Error) -> Outcome {
    let named = ["field", "tensor", "option"].iter().find_map(|key| error.context(key));
    match (error.kind(), named) {
        (ErrorKind::Unsupported | ErrorKind::InvalidInput, Some(named)) => {
            Outcome::Refused(format!("{named}: {}", error.message()))
        }
        _ => Outcome::Defect(chain(error)),
    }
}

fn chain(error: &Error) -> String {
    let sources = std::iter::successors(std::error::Error::source(error), |error| error.source());
    sources.fold(error.to_string(), |text, source| format!("{text}: {source}"))
}

fn load(engine: &dyn Backend, folder: &Path, script: &Script) -> Result<Arc<dyn Model>, Error> {
    let longest = script.texts.iter().map(Vec::len).max().unwrap();
    let options = LoadOptions::default()
        .with_precision(Precision::Exact)
        .with_capacity(longest)
        .with_sequences(script.texts.len());
    // A PJRT plugin has a number of its own.
    let options = if engine.name() == "pjrt" { options } else { options.with_threads(1) };
    engine.load(&folder.to_owned().into(), &options)
}

fn follow(model: &dyn Model, script: &Script, expected: &Expected<'_>) -> Result<Outcome, Error> {
    let control = Control::default();
    let mut session = model.open_session(&SessionOptions::default())?;
    let mut most = 0f32;
    let mut compare =
        |text: usize, tokens: usize, row: Result<RowResult, Error>| -> Result<Option<Outcome>, Error> {
            let logits = row?.into_logits()?;
            let error = difference(&logits, expected.after(text, tokens));
            most = most.max(error);
            // A NaN is no small number either.
            let differs = !(error <= LOGITS || error <= expected.tolerance(text, tokens));
            let place = format!("logits of text {text} differ by {error} after {tokens} tokens");
            Ok(differs.then_some(Outcome::Defect(place)))
        };

    let whole = session.open()?;
    let text = &script.texts[0];
    let row = session.run_row(Row::logits(whole, text), &control);
    if let Some(defect) = compare(0, text.len(), row)? {
        return Ok(defect);
    }
    session.close(whole)?;

    let sequences = script.texts.iter().map(|_| session.open()).collect::<Result<Vec<SequenceId>, _>>()?;
    let mut fed = vec![0; sequences.len()];
    let mut out = StepOutput::new();
    for step in &script.steps {
        let row = |&(text, tokens): &(usize, usize)| {
            let begin = fed[text];
            Row::logits(sequences[text], &script.texts[text][begin..begin + tokens])
        };
        let rows: Vec<_> = step.iter().map(row).collect();
        session.step(&rows, &control, &mut out)?;
        for (&(text, tokens), row) in step.iter().zip(out.take()) {
            fed[text] += tokens;
            if let Some(defect) = compare(text, fed[text], row)? {
                return Ok(match defect {
                    Outcome::Defect(place) => Outcome::Defect(format!("{place} in steps {:?}", script.steps)),
                    other => other,
                });
            }
        }
    }
    Ok(Outcome::Equal(most))
}

/// The largest difference, relative to the largest magnitude.
fn difference(found: &[f32], expected: &[f32]) -> f32 {
    if found.len() != expected.len() {
        return f32::INFINITY;
    }
    let largest = expected.iter().fold(f32::MIN_POSITIVE, |most, logit| most.max(logit.abs()));
    let errors = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    errors.fold(0f32, |most, error| if error.is_nan() { f32::NAN } else { most.max(error) }) / largest
}
