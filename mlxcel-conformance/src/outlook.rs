//! The reference result: the next-token distribution of a fresh, single sequence that is fed all tokens at
//! once.

use std::fmt;

use mlxcel_core::{
    Control, InferenceSession, Row, RowResult, SampledToken, SamplingPlan, SequenceId, TokenId, Want,
};

use crate::failure::{Failure, Outcome, ensure};
use crate::tolerance::{Bounds, Tolerance, largest};

/// A model's expected result after some tokens.
#[derive(Clone, Debug)]
pub(crate) struct Outlook {
    /// The most likely token, ties go to the lowest id.
    pub(crate) token: TokenId,
    /// Its log probability.
    pub(crate) logprob: f32,
    /// Its margin over the second; none if the engine returns neither logits nor most likely tokens.
    pub(crate) margin: Option<f32>,
    /// All logits, if the engine returns them.
    pub(crate) logits: Option<Vec<f32>>,
}

impl Outlook {
    pub(crate) fn of_logits(logits: Vec<f32>) -> Outcome<Self> {
        ensure!(logits.iter().all(|logit| logit.is_finite()), "a logit is not finite");
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

    /// How far results at this position may differ.
    pub(crate) fn bounds(&self, tolerance: &Tolerance) -> Bounds {
        tolerance.bounds(self.logits.as_deref().map(largest))
    }

    /// Whether rounding may make `token` the greedy choice: it is as likely but for a small margin. Without
    /// logits the reference's second token may be any, and without a known margin none is excused.
    pub(crate) fn excuses(&self, token: TokenId, tolerance: &Tolerance) -> bool {
        let margin = self.bounds(tolerance).margin;
        match &self.logits {
            Some(logits) => {
                let logit = |token: TokenId| logits.get(token as usize).copied();
                let behind = logit(self.token).zip(logit(token)).map(|(best, other)| best - other);
                behind.is_some_and(|behind| behind < margin)
            }
            None => self.margin.is_some_and(|known| known < margin),
        }
    }

    /// Fails if an engine's greedy choice is neither this one nor excused by a small margin.
    pub(crate) fn agrees(
        &self,
        chosen: &SampledToken,
        tolerance: &Tolerance,
        what: impl fmt::Display,
    ) -> Outcome {
        ensure!(
            chosen.token == self.token || self.excuses(chosen.token, tolerance),
            "{what}: token {} was chosen, and the reference is {} (leading by {})",
            chosen.token,
            self.token,
            self.margin.map_or("an unknown margin".to_owned(), |margin| margin.to_string())
        );
        self.scores(chosen.token, chosen.logprob, tolerance, what)
    }

    /// Fails if `logprob` is not the log probability of `token`; without logits, of the reference's token.
    pub(crate) fn scores(
        &self,
        token: TokenId,
        logprob: f32,
        tolerance: &Tolerance,
        what: impl fmt::Display,
    ) -> Outcome {
        let expected = self.logits.as_ref().map_or(self.logprob, |logits| log_softmax(logits, token));
        ensure!(
            (logprob - expected).abs() <= self.bounds(tolerance).logprob,
            "{what}: token {token} has log probability {logprob}, and the reference {expected}"
        );
        Ok(())
    }
}

/// The token with the largest logit among those with `may`, ties go to the lowest id.
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

/// Fails if two logits differ by more than the tolerance.
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

/// The largest difference relative to the largest expected magnitude; none for different lengths. Infinite if
/// a logit is NaN.
pub(crate) fn logits_error(logits: &[f32], expected: &[f32]) -> Option<f32> {
    if logits.len() != expected.len() {
        return None;
    }
    let error = logits.iter().zip(expected).map(|(a, b)| (a - b).abs());
    Some(error.map(|e| if e.is_nan() { f32::INFINITY } else { e }).fold(0.0, f32::max) / largest(expected))
}

/// The result of `sequence`, which is empty, after it is fed all of `tokens` at once.
pub(crate) fn outlook_in(
    session: &mut dyn InferenceSession,
    sequence: SequenceId,
    tokens: &[TokenId],
) -> Outcome<Outlook> {
    let claimed = session.capabilities().clone();
    if claimed.logits {
        return Outlook::of_logits(logits(session, sequence, tokens)?);
    }
    let chosen = choose(session, sequence, tokens, claimed.top_logprobs.min(2))?;
    let margin = match &chosen.top[..] {
        [first, second] => Some(first.logprob - second.logprob),
        _ => None,
    };
    Ok(Outlook { token: chosen.token, logprob: chosen.logprob, margin, logits: None })
}

/// Feeds `tokens` and returns the greedy token, with the `top` most likely.
pub(crate) fn choose(
    session: &mut dyn InferenceSession,
    sequence: SequenceId,
    tokens: &[TokenId],
    top: u16,
) -> Outcome<SampledToken> {
    let plan = SamplingPlan::greedy();
    let row = Row::new(sequence, tokens, Want::token(&plan).with_top(top));
    expect_token(step(session, &[row])?.remove(0)?)
}

/// Feeds `tokens` and returns the greedy token.
pub(crate) fn greedy(
    session: &mut dyn InferenceSession,
    sequence: SequenceId,
    tokens: &[TokenId],
) -> Outcome<SampledToken> {
    choose(session, sequence, tokens, 0)
}

/// Feeds `tokens` and returns the logits after the last.
pub(crate) fn logits(
    session: &mut dyn InferenceSession,
    sequence: SequenceId,
    tokens: &[TokenId],
) -> Outcome<Vec<f32>> {
    expect_logits(step(session, &[Row::logits(sequence, tokens)])?.remove(0)?)
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

/// The token of a row that wants one.
pub(crate) fn expect_token(result: RowResult) -> Outcome<SampledToken> {
    match result {
        RowResult::Tokens(mut tokens) if tokens.len() == 1 => Ok(tokens.remove(0)),
        other => Err(unexpected("a token", &other)),
    }
}

/// The logits of a row that wants those after its last token.
pub(crate) fn expect_logits(result: RowResult) -> Outcome<Vec<f32>> {
    match result {
        RowResult::Logits(mut rows) if rows.len() == 1 => Ok(rows.remove(0)),
        other => Err(unexpected("logits", &other)),
    }
}

pub(crate) fn unexpected(wanted: &str, got: &RowResult) -> Failure {
    let got = match got {
        RowResult::Extended => "nothing",
        RowResult::Tokens(tokens) => &format!("{} tokens", tokens.len()),
        RowResult::Logits(rows) => &format!("logits at {} positions", rows.len()),
        RowResult::Likelihoods(positions) => &format!("likelihoods at {} positions", positions.len()),
        RowResult::Hidden(_) => "a hidden state",
        _ => "something unknown",
    };
    Failure::new(format!("a row that wanted {wanted} got {got}"))
}

/// Runs a step and returns its results, one per row.
pub(crate) fn step(
    session: &mut dyn InferenceSession,
    rows: &[Row<'_>],
) -> Outcome<Vec<mlxcel_core::Result<RowResult>>> {
    let mut out = mlxcel_core::StepOutput::new();
    session.step(rows, &Control::default(), &mut out)?;
    let results = out.take();
    ensure!(results.len() == rows.len(), "{} rows returned {} results", rows.len(), results.len());
    Ok(results)
}

/// Fails unless the sequence holds `position` tokens and is healthy.
pub(crate) fn stands_at(session: &dyn InferenceSession, sequence: SequenceId, position: usize) -> Outcome {
    let state = session.state(sequence)?;
    ensure!(
        state.position == position && !state.poisoned,
        "sequence {sequence} is at position {}{}, not at {position}",
        state.position,
        if state.poisoned { ", poisoned" } else { "" }
    );
    Ok(())
}
