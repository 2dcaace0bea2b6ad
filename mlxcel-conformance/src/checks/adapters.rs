//! Adapters. Need [`Capabilities::adapters`](mlxcel_core::Capabilities::adapters) of a model that is loaded
//! with room, and [`Subject::with_adapters`].

use std::fmt;
use std::sync::Arc;

use mlxcel_core::{
    Adapter, ErrorKind, InferenceSession, Model, ModelSource, Row, SamplingPlan, SequenceId, SequenceOptions,
    SessionOptions, TokenId, Want,
};

use crate::failure::{Failure, Outcome, ensure, refused};
use crate::outlook::{Outlook, choose, expect_token, extend, outlook_in, step};
use crate::subject::Subject;

/// A model with room for adapters, and the sources of some: one that changes nothing, and two others.
struct Adapted {
    model: Arc<dyn Model>,
    sources: [ModelSource; 3],
    slots: usize,
}

impl Adapted {
    fn of(subject: &Subject<'_>) -> Outcome<Self> {
        let (model, sources) = subject.adapted_model()?;
        let Some(room) = model.capabilities().adapters else {
            return Err(Failure::new("a model that was loaded with room for adapters does not claim them"));
        };
        Ok(Self { model, sources, slots: room.slots })
    }

    fn session(&self) -> Outcome<Box<dyn InferenceSession>> {
        Ok(self.model.open_session(&SessionOptions::default())?)
    }

    fn load(&self, source: usize) -> Outcome<Adapter> {
        Ok(self.model.load_adapter(&self.sources[source])?)
    }

    /// What follows `tokens` with an adapter, in a fresh session with one sequence.
    fn outlook(&self, adapter: Option<&Adapter>, tokens: &[TokenId]) -> Outcome<Outlook> {
        let mut session = self.session()?;
        let sequence = session.open_with(&options(adapter))?;
        outlook_in(&mut *session, sequence, tokens)
    }

    /// Continues `sequence`, which holds `tokens`, by the tokens that follow with its adapter alone.
    fn continues(
        &self,
        subject: &Subject<'_>,
        session: &mut dyn InferenceSession,
        sequence: SequenceId,
        (adapter, tokens): (&Adapter, &[TokenId]),
        what: impl fmt::Display,
    ) -> Outcome {
        let mut held = tokens.to_vec();
        for next in subject.tokens(2, 3)? {
            held.push(next);
            let chosen = choose(session, sequence, &[next], 0)?;
            self.outlook(Some(adapter), &held)?.agrees(&chosen, &subject.tolerance()?, &what)?;
        }
        Ok(())
    }
}

fn options(adapter: Option<&Adapter>) -> SequenceOptions {
    let options = SequenceOptions::default();
    adapter.map_or_else(|| options.clone(), |adapter| options.clone().with_adapter(adapter))
}

/// Whether two results are told apart by more than rounding.
fn differ(subject: &Subject<'_>, one: &Outlook, other: &Outlook) -> Outcome<bool> {
    let bounds = one.bounds(&subject.tolerance()?);
    Ok(one.token != other.token || (one.logprob - other.logprob).abs() > 4.0 * bounds.logprob)
}

/// An adapter changes its sequences and no others, and one that adds nothing changes nothing.
///
/// Kills: `ignores_adapters`, `adapters_leak`.
pub fn adapters_change_their_sequences(subject: &Subject<'_>) -> Outcome {
    let adapted = Adapted::of(subject)?;
    let tolerance = subject.tolerance()?;
    let mut changed = [false; 2];
    for number in 0..3 {
        let tokens = subject.tokens(number, 9)?;
        let plain = subject.outlook(&tokens)?;
        let zero = adapted.load(0)?;
        for (adapter, what) in [(None, "without an adapter"), (Some(&zero), "with one that adds nothing")] {
            let mut session = adapted.session()?;
            let sequence = session.open_with(&options(adapter))?;
            plain.agrees(&choose(&mut *session, sequence, &tokens, 0)?, &tolerance, what)?;
        }
        drop(zero);
        for (source, changed) in (1..).zip(&mut changed) {
            let adapter = adapted.load(source)?;
            *changed |= differ(subject, &adapted.outlook(Some(&adapter), &tokens)?, &plain)?;
        }
        let mut session = adapted.session()?;
        let sequence = session.open()?;
        let chosen = choose(&mut *session, sequence, &tokens, 0)?;
        plain.agrees(&chosen, &tolerance, "without an adapter, after others")?;
    }
    ensure!(changed == [true; 2], "an adapter changes no result");
    Ok(())
}

/// Sequences with different adapters, and without one, share passes as other sequences do, with the results
/// that each has alone. Needs two sequences.
///
/// Kills: `one_adapter_for_all`.
pub fn adapters_share_a_pass(subject: &Subject<'_>) -> Outcome {
    let adapted = Adapted::of(subject)?;
    let (tolerance, plan) = (subject.tolerance()?, SamplingPlan::greedy());
    let [first, second] = [adapted.load(1)?, adapted.load(2)?];
    let mut session = adapted.session()?;
    let of_rows = [Some(&first), Some(&second), None];
    let room = session.capabilities().sequences.min(of_rows.len());
    let mut rows = Vec::new();
    for (number, adapter) in of_rows.into_iter().take(room).enumerate() {
        rows.push((session.open_with(&options(adapter))?, adapter, subject.tokens(number, 6 + number)?));
    }
    let mut fed = vec![0; rows.len()];
    for time in 0..4 {
        let step_rows: Vec<_> = rows
            .iter()
            .zip(&fed)
            .map(|((sequence, _, tokens), fed)| Row::new(*sequence, &tokens[*fed..], Want::token(&plan)))
            .collect();
        let before = session.stats().passes;
        let results = step(&mut *session, &step_rows)?;
        let passes = session.stats().passes - before;
        let decode_together = time > 0 && rows.len() <= session.capabilities().batch_rows;
        ensure!(!decode_together || passes == 1, "{} decoding rows took {passes} passes", rows.len());
        for (((_, adapter, tokens), fed), result) in rows.iter_mut().zip(&mut fed).zip(results) {
            let chosen = expect_token(result?)?;
            let what = format_args!("step {time} beside other adapters").to_string();
            adapted.outlook(*adapter, tokens)?.agrees(&chosen, &tolerance, what)?;
            *fed = tokens.len();
            tokens.push(chosen.token);
        }
    }
    Ok(())
}

/// A fork has the adapter of its sequence.
///
/// Kills: `forks_lose_their_adapter`.
pub fn forks_keep_their_adapter(subject: &Subject<'_>) -> Outcome {
    let adapted = Adapted::of(subject)?;
    let adapter = adapted.load(1)?;
    let mut session = adapted.session()?;
    let sequence = session.open_with(&options(Some(&adapter)))?;
    let tokens = subject.tokens(1, 9)?;
    extend(&mut *session, sequence, &tokens)?;
    let fork = session.fork(sequence)?;
    session.close(sequence)?;
    adapted.continues(subject, &mut *session, fork, (&adapter, &tokens), "a fork with an adapter")
}

/// A snapshot belongs to the adapter of its sequence: it is restored with that one, and refused with another
/// or none.
///
/// Kills: `restores_with_any_adapter`, `snapshots_forget_their_adapter`.
pub fn snapshots_belong_to_their_adapter(subject: &Subject<'_>) -> Outcome {
    let adapted = Adapted::of(subject)?;
    let [first, second] = [adapted.load(1)?, adapted.load(2)?];
    ensure!(first.identity() != second.identity(), "two adapters have the identity `{}`", first.identity());
    let mut session = adapted.session()?;
    let tokens = subject.tokens(1, 9)?;
    let mut taken = Vec::new();
    for adapter in [None, Some(&first)] {
        let sequence = session.open_with(&options(adapter))?;
        extend(&mut *session, sequence, &tokens)?;
        taken.push(session.snapshot(sequence)?);
        session.close(sequence)?;
    }
    let [plain, own] = &taken[..] else { return Ok(()) };
    let identity = own.identity().adapter.as_deref();
    ensure!(identity == Some(first.identity()), "a snapshot of `{}` is of {identity:?}", first.identity());
    let invalid = ErrorKind::InvalidInput;
    refused(session.restore(own), invalid, "a snapshot of an adapter, without one")?;
    for (snapshot, adapter, what) in [
        (own, None, "a snapshot of an adapter, without one"),
        (own, Some(&second), "a snapshot of an adapter, with another"),
        (plain, Some(&first), "a snapshot without an adapter, with one"),
    ] {
        refused(session.restore_with(snapshot, &options(adapter)), invalid, what)?;
    }
    let restored = session.restore_with(own, &options(Some(&first)))?;
    adapted.continues(
        subject,
        &mut *session,
        restored,
        (&first, &tokens),
        "a restored sequence with an adapter",
    )
}

/// A slot is taken as long as a handle or a sequence needs its adapter; a full model refuses another; and in
/// a slot that was freed an adapter is what it is in a fresh one.
///
/// Kills: `has_more_slots_than_it_claims`, `stale_adapters`.
pub fn adapter_slots_are_reused(subject: &Subject<'_>) -> Outcome {
    let adapted = Adapted::of(subject)?;
    let full = |what: &str| {
        refused(adapted.model.load_adapter(&adapted.sources[2]), ErrorKind::CapacityExceeded, what)
    };
    let tokens = subject.tokens(3, 9)?;
    let first = adapted.load(1)?;
    let expected = adapted.outlook(Some(&first), &tokens)?;
    let others: Vec<_> = (1..adapted.slots).map(|_| adapted.load(2)).collect::<Outcome<_>>()?;
    full("an adapter beyond the claimed slots")?;
    let mut session = adapted.session()?;
    let sequence = session.open_with(&options(Some(&first)))?;
    drop(first);
    full("an adapter in a slot that a sequence uses")?;
    let chosen = choose(&mut *session, sequence, &tokens, 0)?;
    expected.agrees(&chosen, &subject.tolerance()?, "an adapter without a handle")?;
    session.close(sequence)?;
    // What the one before it changed, this one does not.
    let zero = adapted.load(0)?;
    let plain = subject.outlook(&tokens)?;
    let sequence = session.open_with(&options(Some(&zero)))?;
    let chosen = choose(&mut *session, sequence, &tokens, 0)?;
    plain.agrees(&chosen, &subject.tolerance()?, "an adapter that adds nothing, after another")?;
    session.close(sequence)?;
    drop((zero, others));
    let first = adapted.load(1)?;
    let sequence = session.open_with(&options(Some(&first)))?;
    let chosen = choose(&mut *session, sequence, &tokens, 0)?;
    expected.agrees(&chosen, &subject.tolerance()?, "an adapter that was loaded again")
}
