//! Sequences that are generated step by step and compared with the reference result.

use std::fmt;
use std::sync::PoisonError;

use mlxcel_core::{InferenceSession, Row, SampledToken, SamplingPlan, SequenceId, TokenId};

use crate::failure::{Outcome, ensure};
use crate::outlook::{Outlook, expect_token, extend, greedy, outlook_in, step};
use crate::subject::Subject;

impl Subject<'_> {
    /// The model's expected result after `tokens`: that of a fresh session with one sequence, fed all at
    /// once.
    pub(crate) fn outlook(&self, tokens: &[TokenId]) -> Outcome<Outlook> {
        let outlooks = || self.outlooks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = outlooks().get(tokens) {
            return Ok(known.clone());
        }
        let mut session = self.session()?;
        let sequence = session.open()?;
        let outlook = outlook_in(&mut *session, sequence, tokens)?;
        session.close(sequence)?;
        outlooks().insert(tokens.to_vec(), outlook.clone());
        Ok(outlook)
    }

    /// Fails if `chosen` differs from the expected result after `tokens`.
    pub(crate) fn agrees(
        &self,
        chosen: &SampledToken,
        tokens: &[TokenId],
        what: impl fmt::Display,
    ) -> Outcome {
        self.outlook(tokens)?.agrees(chosen, &self.tolerance()?, what)
    }
}

/// A sequence being generated, with all tokens that it was fed: each choice is compared with the model's
/// expected result after these tokens.
pub(crate) struct Walk {
    pub(crate) sequence: SequenceId,
    /// The tokens that were fed.
    pub(crate) held: Vec<TokenId>,
    /// The tokens to feed next.
    pub(crate) pending: Vec<TokenId>,
}

impl Walk {
    /// A fresh sequence with `prompt` pending.
    pub(crate) fn open(session: &mut dyn InferenceSession, prompt: Vec<TokenId>) -> Outcome<Self> {
        Ok(Self { sequence: session.open()?, held: Vec::new(), pending: prompt })
    }

    /// Records the pending tokens as fed, and compares their result.
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

    /// Continues as a single sequence for `steps` steps.
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

/// Checks that `act` on a sequence of nine tokens counts no pass and no token; `what` names it.
pub(crate) fn computes_nothing(
    subject: &Subject<'_>,
    what: &str,
    act: impl FnOnce(&mut dyn InferenceSession, SequenceId) -> mlxcel_core::Result<()>,
) -> Outcome {
    let mut session = subject.session()?;
    let sequence = session.open()?;
    extend(&mut *session, sequence, &subject.tokens(3, 9)?)?;
    let before = session.stats();
    act(&mut *session, sequence)?;
    let after = session.stats();
    ensure!(
        (after.tokens, after.passes) == (before.tokens, before.passes),
        "{what} took {} passes over {} tokens",
        after.passes.wrapping_sub(before.passes),
        after.tokens.wrapping_sub(before.tokens)
    );
    Ok(())
}
