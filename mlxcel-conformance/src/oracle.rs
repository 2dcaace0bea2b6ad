//! An engine against the recorded results of a reference implementation.

use std::fs;
use std::path::Path;

use mlxcel_core::{
    Control, Error, ErrorKind, GenerateExt, GenerateOptions, InferenceSession, InferenceSessionExt, Result,
    Row, RowResult, SamplingPlan, SequenceId, TokenId,
};
use serde::Deserialize;

use crate::failure::{Failure, Outcome, ensure};
use crate::outlook::{logits_error, step};
use crate::tolerance::{Tolerance, largest};

/// What a reference implementation computed for a checkpoint in float32, such as transformers.
///
/// As JSON it is an object with `cases`, whose fields are those of [`OracleCase`]; this repository's
/// `fixtures/make_fixture.py` writes it as `oracle.json` beside a checkpoint.
///
/// ```no_run
/// use mlxcel_conformance::{Oracle, Tolerance};
/// use mlxcel_core::reference::ReferenceBackend as MyEngine;
/// use mlxcel_core::{Backend, LoadOptions, Precision, SessionOptions};
///
/// let model = MyEngine::new().load(&"fixtures/llama".into(), &LoadOptions::default())?;
/// let mut session = model.open_session(&SessionOptions::default())?;
/// let (oracle, tolerance) = (Oracle::read("fixtures/llama/oracle.json")?, Tolerance::of(Precision::Native));
/// oracle.check(&mut *session, &tolerance)?;
/// oracle.check_chunks(&mut *session, &[1, 7, 64], &tolerance)?;
/// oracle.check_batch(&mut *session, &tolerance)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct Oracle {
    /// The prompts, with what follows each.
    pub cases: Vec<OracleCase>,
}

/// What the reference implementation computed after one prompt.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct OracleCase {
    /// The prompt.
    pub prompt: Vec<TokenId>,
    /// The most likely tokens, one after another.
    pub greedy: Vec<TokenId>,
    /// The natural log probability of each of `greedy`.
    pub logprobs: Vec<f32>,
    /// The lead of each of `greedy` over the second most likely token, in logits.
    pub margins: Vec<f32>,
    /// The logits after the prompt, one for each id of the vocabulary.
    pub prefill_logits: Vec<f32>,
    /// The text of `greedy`, if it was recorded.
    #[serde(default)]
    pub completion: String,
}

impl Oracle {
    /// Reads an oracle from a JSON file.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] if the file cannot be read, [`ErrorKind::InvalidInput`] if it is not an oracle; both
    /// name the path.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let failed =
            |kind, message| Error::new(kind, "read an oracle", message).with_context("path", path.display());
        let text = fs::read(path)
            .map_err(|error| failed(ErrorKind::Io, "the file is not read").with_source(error))?;
        serde_json::from_slice(&text)
            .map_err(|error| failed(ErrorKind::InvalidInput, "it is not an oracle").with_source(error))
    }

    /// Without the cases that take more positions than `capacity`.
    #[must_use]
    pub fn within(mut self, capacity: usize) -> Self {
        self.cases.retain(|case| case.prompt.len() + case.greedy.len() <= capacity);
        self
    }

    /// The case with the longest prompt.
    ///
    /// # Errors
    ///
    /// A failure if there are no cases.
    pub fn longest(&self) -> Outcome<&OracleCase> {
        let longest = self.cases.iter().max_by_key(|case| case.prompt.len());
        longest.ok_or_else(|| Failure::new("the oracle has no cases"))
    }

    /// Checks each case by itself, its prompt in one row; the largest difference of logits, relative to the
    /// largest of them.
    ///
    /// # Errors
    ///
    /// A failure that names the case, and what differs.
    pub fn check(&self, session: &mut dyn InferenceSession, tolerance: &Tolerance) -> Outcome<f32> {
        self.longest()?;
        let mut most = 0f32;
        for (number, case) in self.cases.iter().enumerate() {
            let during = |failure: Failure| failure.during(format_args!("case {number}"));
            most = most.max(case.check(session, tolerance).map_err(during)?);
        }
        Ok(most)
    }

    /// Checks the longest prompt in chunks of each of these numbers of tokens, and what follows it.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    pub fn check_chunks(
        &self,
        session: &mut dyn InferenceSession,
        chunks: &[usize],
        tolerance: &Tolerance,
    ) -> Outcome {
        let case = self.longest()?;
        for &chunk in chunks {
            let during = |failure: Failure| failure.during(format_args!("in chunks of {chunk}"));
            case.check_chunked(session, chunk, tolerance).map_err(during)?;
        }
        Ok(())
    }

    /// Checks all cases in one session together: each joins when those before it are three tokens ahead.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    pub fn check_batch(&self, session: &mut dyn InferenceSession, tolerance: &Tolerance) -> Outcome {
        self.longest()?;
        let plan = SamplingPlan::greedy();
        let mut running: Vec<(SequenceId, Vec<TokenId>, Vec<f32>)> = Vec::new();
        for _ in &self.cases {
            running.push((session.open()?, Vec::new(), Vec::new()));
            for _ in 0..3 {
                let feed = |(said, case): (usize, &OracleCase)| match said.checked_sub(1) {
                    None => case.prompt.clone(),
                    // The oracle's tokens, so that an honest difference does not end the comparison.
                    Some(last) => case.greedy.get(last).copied().into_iter().collect(),
                };
                let said = running.iter().map(|(_, tokens, _)| tokens.len());
                let feeds: Vec<Vec<TokenId>> = said.zip(&self.cases).map(feed).collect();
                let rows = running.iter().zip(&feeds).filter(|(_, feed)| !feed.is_empty());
                let rows: Vec<_> = rows.map(|((id, ..), feed)| Row::next(*id, feed, &plan)).collect();
                let results = step(session, &rows)?;
                drop(rows);
                let ran = running.iter_mut().zip(&feeds).filter(|(_, feed)| !feed.is_empty());
                for (((_, tokens, logprobs), _), result) in ran.zip(results) {
                    let chosen = result?.into_token()?;
                    tokens.push(chosen.token);
                    logprobs.push(chosen.logprob);
                }
            }
        }
        for (number, ((sequence, tokens, logprobs), case)) in running.iter().zip(&self.cases).enumerate() {
            session.close(*sequence)?;
            let during = |failure: Failure| failure.during(format_args!("batched, case {number}"));
            case.check_tokens(tokens, logprobs, tolerance).map_err(during)?;
        }
        Ok(())
    }
}

impl OracleCase {
    /// Checks the logits after the prompt, which are given in one row, and the greedy tokens; the largest
    /// difference of logits, relative to the largest of them.
    ///
    /// # Errors
    ///
    /// A failure that says what differs.
    pub fn check(&self, session: &mut dyn InferenceSession, tolerance: &Tolerance) -> Outcome<f32> {
        let logits = prefill_logits(session, &self.prompt, usize::MAX)?;
        let error = self.check_logits(&logits, tolerance)?;
        let generated = session.generate_greedy(&self.prompt, &GenerateOptions::new(self.greedy.len()))?;
        ensure!(generated.tokens.len() == self.greedy.len(), "{} tokens", generated.tokens.len());
        self.check_tokens(&generated.tokens, &generated.logprobs, tolerance)?;
        Ok(error)
    }

    /// Checks logits after the prompt; their largest difference, relative to the largest of them.
    ///
    /// # Errors
    ///
    /// A failure with the difference.
    pub fn check_logits(&self, logits: &[f32], tolerance: &Tolerance) -> Outcome<f32> {
        let count = self.prefill_logits.len();
        let error = logits_error(logits, &self.prefill_logits)
            .ok_or_else(|| Failure::new(format!("{} logits, not {count}", logits.len())))?;
        ensure!(error <= tolerance.logits, "logits differ by {error:.1e} of the largest");
        Ok(error)
    }

    /// Checks generated tokens with their log probabilities, up to the first difference that its margin
    /// excuses. They may be fewer than the oracle's.
    ///
    /// # Errors
    ///
    /// A failure with the step.
    pub fn check_tokens(&self, tokens: &[TokenId], logprobs: &[f32], tolerance: &Tolerance) -> Outcome {
        let bounds = tolerance.bounds(Some(largest(&self.prefill_logits)));
        let expected = self.greedy.iter().zip(&self.logprobs).zip(&self.margins);
        let found = tokens.iter().zip(logprobs);
        for (step, ((&token, &logprob), ((&greedy, &expected), &margin))) in found.zip(expected).enumerate() {
            let error = (logprob - expected).abs();
            if token != greedy {
                // Only the second most likely token is as likely as the first.
                let excused = margin < bounds.margin && error <= bounds.margin + bounds.logprob;
                ensure!(excused, "token {step} is {token}, not {greedy}");
                return Ok(());
            }
            ensure!(error <= bounds.logprob, "log probability {step} is {logprob}, not {expected}");
        }
        Ok(())
    }

    fn check_chunked(
        &self,
        session: &mut dyn InferenceSession,
        chunk: usize,
        tolerance: &Tolerance,
    ) -> Outcome {
        let plan = SamplingPlan::greedy();
        let (sequence, logits) = prefill(session, &self.prompt, chunk)?;
        self.check_logits(&logits, tolerance)?;
        // What follows the prompt is in its logits.
        let (first, first_logprob) = (self.greedy.iter().take(1), self.logprobs.iter().take(1));
        let (mut tokens, mut logprobs): (Vec<_>, Vec<_>) =
            (first.copied().collect(), first_logprob.copied().collect());
        for (&fed, &expected) in self.greedy.iter().zip(self.greedy.iter().skip(1)) {
            let chosen = session.run_row(Row::next(sequence, &[fed], &plan), &Control::default())?;
            let chosen = chosen.into_token()?;
            tokens.push(chosen.token);
            logprobs.push(chosen.logprob);
            if chosen.token != expected {
                break;
            }
        }
        session.close(sequence)?;
        self.check_tokens(&tokens, &logprobs, tolerance)
    }
}

/// The logits after `prompt`, which is given in rows of `chunk` tokens.
///
/// # Errors
///
/// Those of the session.
pub fn prefill_logits(
    session: &mut dyn InferenceSession,
    prompt: &[TokenId],
    chunk: usize,
) -> Result<Vec<f32>> {
    let (sequence, logits) = prefill(session, prompt, chunk)?;
    session.close(sequence)?;
    Ok(logits)
}

/// The same, and the sequence that has read the prompt.
fn prefill(
    session: &mut dyn InferenceSession,
    prompt: &[TokenId],
    chunk: usize,
) -> Result<(SequenceId, Vec<f32>)> {
    let sequence = session.open()?;
    let last = prompt.len().div_ceil(chunk).saturating_sub(1);
    let mut logits = Vec::new();
    for (number, tokens) in prompt.chunks(chunk).enumerate() {
        let row = if number == last { Row::logits(sequence, tokens) } else { Row::extend(sequence, tokens) };
        if let result @ RowResult::Logits(_) = session.run_row(row, &Control::default())? {
            logits = result.into_logits()?;
        }
    }
    Ok((sequence, logits))
}
