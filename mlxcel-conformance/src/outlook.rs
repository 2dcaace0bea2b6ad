//! The reference result: the next-token distribution of a new sequence that is fed all tokens at once, alone.

use std::fmt;

use mlxcel_core::{
    Control, InferenceSession, Row, RowResult, SampledToken, SamplingPlan, SequenceId, TokenId, Want,
};

use crate::Subject;
use crate::failure::{Failure, Outcome, ensure};
use crate::tolerance::{Bounds, Tolerance, largest};

/// What a model expects after some tokens.
#[derive(Clone, Debug)]
pub(crate) struct Outlook {
    /// The most likely token, ties go to the lowest id.
    pub(crate) token: TokenId,
    /// Its log probability.
    pub(crate) logprob: f32,
    /// By how much it leads the second; none where the engine shows neither logits nor most likely tokens.
    pub(crate) margin: Option<f32>,
    /// All logits, where the engine shows them.
    pub(crate) logits: Option<Vec<f32>>,
}

impl Outlook {
    pub(crate) fn of_logits(logits: Vec<f32>) -> Outcome<Self> {
        ensure!(logits.iter().all(|logit| logit.is_finite()), "a logit is not a finite number");
        let best = argmax(&logits, |_| true).ok_or_else(|| Failure::new("there are no logits"))?;
        let second = argmax(&logits, |token| token != best);
        let lead = |second: TokenId| logits[best as usize] - logits[second as usize];
        Ok(Self {
            token: best,
            logprob: log_softmax(&logits, best),
            margin: Some(second.map_or(f32::INFINITY, lead)),
            logits: Some(logits),
        })
    }

    /// How far results of this place may lie apart.
    pub(crate) fn bounds(&self, tolerance: &Tolerance) -> Bounds {
        tolerance.bounds(self.logits.as_deref().map(largest))
    }

    /// Fails where an engine's greedy choice is neither this one nor excused by a small margin.
    pub(crate) fn agrees(
        &self,
        chosen: &SampledToken,
        tolerance: &Tolerance,
        what: impl fmt::Display,
    ) -> Outcome {
        let bounds = self.bounds(tolerance);
        if chosen.token != self.token {
            // Without a margin nothing excuses another token.
            let excused = self.margin.is_some_and(|margin| margin < bounds.margin);
            ensure!(
                excused,
                "{what}: token {} was chosen, and alone at once it is {} (leading by {})",
                chosen.token,
                self.token,
                self.margin.map_or("an unknown margin".to_owned(), |margin| margin.to_string())
            );
        }
        let expected = match &self.logits {
            Some(logits) => log_softmax(logits, chosen.token),
            None => self.logprob,
        };
        let error = (chosen.logprob - expected).abs();
        ensure!(
            error <= bounds.logprob,
            "{what}: token {} has log probability {}, and alone at once {expected}",
            chosen.token,
            chosen.logprob
        );
        Ok(())
    }
}

/// The token with the largest logit among those that may be chosen, ties go to the lowest id.
pub(crate) fn argmax(logits: &[f32], may: impl Fn(TokenId) -> bool) -> Option<TokenId> {
    (0..logits.len() as TokenId)
        .filter(|&token| may(token))
        .reduce(|best, token| if logits[token as usize] > logits[best as usize] { token } else { best })
}

/// The natural log probability of `token`, summed in double precision.
pub(crate) fn log_softmax(logits: &[f32], token: TokenId) -> f32 {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let total = largest + logits.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum::<f64>().ln();
    (f64::from(logits[token as usize]) - total) as f32
}

/// Fails where two logits differ by more than the tolerance.
pub(crate) fn same_logits(
    logits: &[f32],
    expected: &[f32],
    tolerance: &Tolerance,
    what: impl fmt::Display,
) -> Outcome {
    let error = logits_error(logits, expected)
        .ok_or_else(|| Failure::new(format!("{what}: {} logits, not {}", logits.len(), expected.len())))?;
    ensure!(error <= tolerance.logits, "{what}: logits differ by {error} of the largest");
    Ok(())
}

/// The largest difference relative to the largest expected magnitude; none for different lengths. Infinite where a logit is no
/// number.
pub(crate) fn logits_error(logits: &[f32], expected: &[f32]) -> Option<f32> {
    if logits.len() != expected.len() {
        return None;
    }
    let error = logits.iter().zip(expected).map(|(a, b)| (a - b).abs());
    Some(error.map(|e| if e.is_nan() { f32::INFINITY } else { e }).fold(0.0, f32::max) / largest(expected))
}

impl Subject<'_> {
    /// What the model expects after `tokens`: a fresh session with one sequence, fed all at once.
    pub(crate) fn outlook(&self, tokens: &[TokenId]) -> Outcome<Outlook> {
        if let Some(known) = self.known_outlook(tokens) {
            return Ok(known);
        }
        let mut session = self.session()?;
        let sequence = session.open()?;
        let claimed = session.capabilities().clone();
        let outlook = if claimed.logits {
            Outlook::of_logits(logits(&mut *session, sequence, tokens)?)?
        } else {
            let chosen = choose(&mut *session, sequence, tokens, claimed.top_logprobs.min(2))?;
            let margin = match &chosen.top[..] {
                [first, second] => Some(first.logprob - second.logprob),
                _ => None,
            };
            Outlook { token: chosen.token, logprob: chosen.logprob, margin, logits: None }
        };
        session.close(sequence)?;
        self.learn_outlook(tokens, outlook.clone());
        Ok(outlook)
    }

    /// Fails where `chosen` is not what the model expects after `tokens`.
    pub(crate) fn agrees(
        &self,
        chosen: &SampledToken,
        tokens: &[TokenId],
        what: impl fmt::Display,
    ) -> Outcome {
        self.outlook(tokens)?.agrees(chosen, &self.tolerance()?, what)
    }
}

/// Feeds `tokens` and gives the token that greedy choice finds next, with the `top` most likely.
pub(crate) fn choose(
    session: &mut dyn InferenceSession,
    sequence: SequenceId,
    tokens: &[TokenId],
    top: u16,
) -> Outcome<SampledToken> {
    let plan = SamplingPlan::greedy();
    let row = Row::new(sequence, tokens, Want::Next { plan: &plan, mask: None, top });
    expect_token(step(session, &[row])?.remove(0)?)
}

/// Feeds `tokens` and gives the greedy token.
pub(crate) fn greedy(
    session: &mut dyn InferenceSession,
    sequence: SequenceId,
    tokens: &[TokenId],
) -> Outcome<SampledToken> {
    choose(session, sequence, tokens, 0)
}

/// Feeds `tokens` and gives the logits after the last.
pub(crate) fn logits(
    session: &mut dyn InferenceSession,
    sequence: SequenceId,
    tokens: &[TokenId],
) -> Outcome<Vec<f32>> {
    match step(session, &[Row::logits(sequence, tokens)])?.remove(0)? {
        RowResult::Logits(logits) => Ok(logits),
        other => Err(unexpected("logits", &other)),
    }
}

/// Feeds `tokens` without wanting a result.
pub(crate) fn extend(
    session: &mut dyn InferenceSession,
    sequence: SequenceId,
    tokens: &[TokenId],
) -> Outcome {
    match step(session, &[Row::extend(sequence, tokens)])?.remove(0)? {
        RowResult::Extended => Ok(()),
        other => Err(unexpected("nothing", &other)),
    }
}

/// The token of a row that wanted one.
pub(crate) fn expect_token(result: RowResult) -> Outcome<SampledToken> {
    match result {
        RowResult::Token(token) => Ok(token),
        other => Err(unexpected("a token", &other)),
    }
}

pub(crate) fn unexpected(wanted: &str, got: &RowResult) -> Failure {
    let got = match got {
        RowResult::Extended => "nothing",
        RowResult::Token(_) => "a token",
        RowResult::Logits(_) => "logits",
        RowResult::Positions(_) => "positions",
        RowResult::Hidden(_) => "a hidden state",
        RowResult::Tokens(_) => "tokens",
        RowResult::LogitsEach(_) => "logits of several places",
        _ => "something unknown",
    };
    Failure::new(format!("a row that wanted {wanted} was answered with {got}"))
}

/// A sequence being generated, together with all that it was fed: each of its choices is compared with what the model expects
/// after these tokens alone and at once.
pub(crate) struct Walk {
    pub(crate) sequence: SequenceId,
    /// What the sequence holds.
    pub(crate) held: Vec<TokenId>,
    /// What is to be fed next.
    pub(crate) pending: Vec<TokenId>,
}

impl Walk {
    /// A fresh sequence that is to be fed `prompt`.
    pub(crate) fn open(session: &mut dyn InferenceSession, prompt: Vec<TokenId>) -> Outcome<Self> {
        Ok(Self { sequence: session.open()?, held: Vec::new(), pending: prompt })
    }

    /// Notes what the pending tokens were answered with, and compares it.
    pub(crate) fn take(
        &mut self,
        subject: &Subject<'_>,
        chosen: &SampledToken,
        what: impl fmt::Display,
    ) -> Outcome {
        self.held.append(&mut self.pending);
        subject.agrees(chosen, &self.held, what)?;
        self.pending = vec![chosen.token];
        Ok(())
    }

    /// Continues alone for `steps` steps.
    pub(crate) fn run(
        &mut self,
        subject: &Subject<'_>,
        session: &mut dyn InferenceSession,
        steps: usize,
        what: impl fmt::Display,
    ) -> Outcome {
        for step in 0..steps {
            let chosen = greedy(session, self.sequence, &self.pending)?;
            self.take(subject, &chosen, format_args!("{what}, step {step}"))?;
        }
        Ok(())
    }
}

/// Runs one step of all walks together.
pub(crate) fn step_together(
    subject: &Subject<'_>,
    session: &mut dyn InferenceSession,
    walks: &mut [Walk],
    what: impl fmt::Display,
) -> Outcome {
    let plan = SamplingPlan::greedy();
    let rows: Vec<_> = walks.iter().map(|walk| Row::next(walk.sequence, &walk.pending, &plan)).collect();
    let results = step(session, &rows)?;
    for (i, (walk, result)) in walks.iter_mut().zip(results).enumerate() {
        walk.take(subject, &expect_token(result?)?, format_args!("{what}, row {i}"))?;
    }
    Ok(())
}

/// Runs a step and gives its results, one a row.
pub(crate) fn step(
    session: &mut dyn InferenceSession,
    rows: &[Row<'_>],
) -> Outcome<Vec<mlxcel_core::Result<RowResult>>> {
    let mut out = mlxcel_core::StepOutput::new();
    session.step(rows, &Control::default(), &mut out)?;
    let results = out.take();
    ensure!(results.len() == rows.len(), "{} rows were answered with {} results", rows.len(), results.len());
    Ok(results)
}

/// Fails unless the sequence holds `position` tokens and is healthy.
pub(crate) fn stands_at(session: &dyn InferenceSession, sequence: SequenceId, position: usize) -> Outcome {
    let state = session.state(sequence)?;
    ensure!(
        state.position == position && !state.poisoned,
        "sequence {sequence} stands at {}{}, not at {position}",
        state.position,
        if state.poisoned { ", poisoned" } else { "" }
    );
    Ok(())
}
