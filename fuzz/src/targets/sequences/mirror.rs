//! A session beside what is known of its sequences.
#![allow(clippy::panic, reason = "a finding")]

use std::collections::BTreeMap;

use arbitrary::Unstructured;
use mlxcel_core::{
    CancelToken, Control, ErrorKind, InferenceSession, Result, Row, RowResult, SamplingPlan, SequenceId,
    Snapshot, StepOutput, TokenId, Want,
};

use super::oracle::Oracle;
use super::{CAPACITY, SEQUENCES};
use crate::outcome::Outcome;

/// How far a logit may be off where an engine does not claim that batches change nothing, relative to the
/// largest.
const TOLERANCE: f32 = 2e-3;

/// A sequence, as it must be.
#[derive(Clone, Debug, Default)]
struct Known {
    tokens: Vec<TokenId>,
    poisoned: bool,
    drafts: Drafts,
}

/// Where the draft tokens of a sequence's last row begin.
#[derive(Clone, Copy, Debug, Default)]
enum Drafts {
    #[default]
    None,
    From(usize),
    /// A row behind them failed, and may have failed late.
    Unknown,
}

/// A row before it is run.
struct Asked {
    sequence: SequenceId,
    tokens: Vec<TokenId>,
    want: u8,
    /// How many of the tokens are draft tokens, if they are verified.
    drafts: usize,
    /// Whether this row alone is cancelled before the step.
    cancelled: bool,
}

pub(super) struct Mirror {
    session: Box<dyn InferenceSession>,
    vocabulary: usize,
    open: BTreeMap<SequenceId, Known>,
    closed: Vec<SequenceId>,
    snapshots: Vec<(Snapshot, Vec<TokenId>)>,
    /// What kinds of errors there were.
    seen: BTreeMap<&'static str, Vec<ErrorKind>>,
}

impl Mirror {
    pub(super) fn new(session: Box<dyn InferenceSession>, vocabulary: usize) -> Self {
        let (open, seen) = (BTreeMap::new(), BTreeMap::new());
        Self { session, vocabulary, open, closed: Vec::new(), snapshots: Vec::new(), seen }
    }

    /// Makes one call and holds its answer against what is known.
    pub(super) fn call(
        &mut self,
        oracle: &mut Oracle,
        choices: &mut Unstructured<'_>,
    ) -> arbitrary::Result<()> {
        match choices.int_in_range(0..=15u8)? {
            0 | 1 => self.open(),
            2 => {
                let sequence = self.some(choices)?;
                self.close(sequence);
            }
            3 | 4 => {
                let (sequence, position) = (self.some(choices)?, choices.int_in_range(0..=CAPACITY + 1)?);
                self.rewind(sequence, position);
            }
            5 => {
                let sequence = self.some(choices)?;
                self.fork(sequence);
            }
            6 => {
                let sequence = self.some(choices)?;
                self.snapshot(sequence);
            }
            7 => {
                if !self.snapshots.is_empty() {
                    let place = choices.choose_index(self.snapshots.len())?;
                    self.restore(place);
                }
            }
            _ => self.step(oracle, choices)?,
        }
        self.check_states();
        Ok(())
    }

    /// Closes what is open; nothing may be left.
    pub(super) fn finish(mut self) -> Outcome {
        let open: Vec<_> = self.open.keys().copied().collect();
        open.into_iter().for_each(|sequence| self.close(sequence));
        assert_eq!(self.session.stats().kv_bytes, 0, "memory of no sequence");
        Outcome::new(format!("{:?}", self.seen))
    }

    fn note<T>(&mut self, call: &'static str, result: &Result<T>) {
        if let Err(error) = result {
            let seen = self.seen.entry(call).or_default();
            if !seen.contains(&error.kind()) {
                seen.push(error.kind());
            }
        }
    }

    /// A sequence: one that is open, mostly.
    fn some(&self, choices: &mut Unstructured<'_>) -> arbitrary::Result<SequenceId> {
        let open: Vec<_> = self.open.keys().copied().collect();
        if !open.is_empty() && choices.int_in_range(0..=15u8)? != 0 {
            return choices.choose(&open).copied();
        }
        let stale = self.closed.last().copied();
        Ok(stale.unwrap_or(SequenceId::new(1000)))
    }

    fn expect<T: std::fmt::Debug>(
        &mut self,
        call: &'static str,
        result: Result<T>,
        allowed: &[ErrorKind],
    ) -> Option<T> {
        self.note(call, &result);
        match result {
            Ok(value) => {
                assert!(
                    allowed.is_empty(),
                    "{call} gave {value:?} where it should fail with one of {allowed:?}"
                );
                Some(value)
            }
            Err(error) => {
                // A failure on purpose names its point, and leaves everything as it was.
                let on_purpose = error.context("point").is_some();
                assert!(
                    on_purpose || allowed.contains(&error.kind()),
                    "{call}: {error} ({:?}), allowed: {allowed:?}",
                    error.kind()
                );
                None
            }
        }
    }

    /// Why a call on this sequence must fail, if it must.
    fn obstacle(&self, sequence: SequenceId) -> Vec<ErrorKind> {
        match self.open.get(&sequence) {
            None => vec![ErrorKind::NotFound],
            Some(known) if known.poisoned => vec![ErrorKind::Poisoned],
            Some(_) => Vec::new(),
        }
    }

    fn full(&self) -> Vec<ErrorKind> {
        if self.open.len() >= SEQUENCES { vec![ErrorKind::CapacityExceeded] } else { Vec::new() }
    }

    fn add(&mut self, sequence: SequenceId, tokens: Vec<TokenId>) {
        assert!(!self.closed.contains(&sequence), "the number {sequence} was used before");
        let old = self.open.insert(sequence, Known { tokens, ..Known::default() });
        assert!(old.is_none(), "the number {sequence} is in use");
    }

    fn open(&mut self) {
        let (result, allowed) = (self.session.open(), self.full());
        if let Some(sequence) = self.expect("open", result, &allowed) {
            self.add(sequence, Vec::new());
        }
    }

    fn close(&mut self, sequence: SequenceId) {
        let allowed = if self.open.contains_key(&sequence) { &[][..] } else { &[ErrorKind::NotFound] };
        let result = self.session.close(sequence);
        if self.expect("close", result, allowed).is_some() {
            self.open.remove(&sequence);
            self.closed.push(sequence);
        }
    }

    fn rewind(&mut self, sequence: SequenceId, position: usize) {
        let mut allowed = self.obstacle(sequence);
        if self.open.get(&sequence).is_some_and(|known| position > known.tokens.len()) {
            allowed.push(ErrorKind::InvalidInput);
        }
        let result = self.session.rewind(sequence, position);
        let capabilities = self.session.capabilities();
        if !capabilities.rewind && !capabilities.verification {
            allowed = vec![ErrorKind::Unsupported];
        } else if !capabilities.rewind
            && let Some(known) = self.open.get(&sequence)
        {
            let unsupported = match known.drafts {
                Drafts::None => true,
                Drafts::From(first) => position < first,
                Drafts::Unknown => result.is_err(),
            };
            allowed.extend(unsupported.then_some(ErrorKind::Unsupported));
        }
        if self.expect("rewind", result, &allowed).is_some()
            && let Some(known) = self.open.get_mut(&sequence)
        {
            known.tokens.truncate(position);
        }
    }

    fn fork(&mut self, sequence: SequenceId) {
        let mut allowed = self.obstacle(sequence);
        allowed.extend(self.full());
        let result = self.session.fork(sequence);
        if let Some(copy) = self.expect("fork", result, &allowed) {
            let tokens = self.open.get(&sequence).map(|known| known.tokens.clone()).unwrap_or_default();
            self.add(copy, tokens);
        }
    }

    fn snapshot(&mut self, sequence: SequenceId) {
        let allowed = self.obstacle(sequence);
        let result = self.session.snapshot(sequence);
        if let Some(snapshot) = self.expect("snapshot", result, &allowed) {
            let tokens = self.open.get(&sequence).map(|known| known.tokens.clone()).unwrap_or_default();
            assert_eq!(snapshot.position(), tokens.len());
            self.snapshots.push((snapshot, tokens));
        }
    }

    fn restore(&mut self, place: usize) {
        let (snapshot, tokens) = self.snapshots[place].clone();
        let (result, allowed) = (self.session.restore(&snapshot), self.full());
        if let Some(sequence) = self.expect("restore", result, &allowed) {
            self.add(sequence, tokens);
        }
    }

    fn check_states(&self) {
        for (&sequence, known) in &self.open {
            match self.session.state(sequence) {
                Ok(state) => assert_eq!(
                    (state.position, state.capacity, state.poisoned),
                    (known.tokens.len(), CAPACITY, known.poisoned),
                    "sequence {sequence}"
                ),
                Err(error) => panic!("sequence {sequence}: {error}"),
            }
        }
        for &sequence in &self.closed {
            assert!(self.session.state(sequence).is_err(), "sequence {sequence} is closed");
        }
    }

    fn step(&mut self, oracle: &mut Oracle, choices: &mut Unstructured<'_>) -> arbitrary::Result<()> {
        let mut asked = Vec::new();
        for _ in 0..choices.int_in_range(1..=4u8)? {
            asked.push(self.row(choices)?);
        }
        let (plan, cancel, cancel_row) = (SamplingPlan::greedy(), CancelToken::new(), CancelToken::new());
        cancel_row.cancel();
        let cancelled = choices.int_in_range(0..=31u8)? == 0;
        if cancelled {
            cancel.cancel();
        }
        let rows: Vec<Row<'_>> = asked
            .iter()
            .map(|asked| {
                let want = match asked.want {
                    0 => Want::nothing(),
                    1 => Want::token(&plan).with_top(2),
                    2 => Want::likelihoods(1),
                    3 => Want::logits(),
                    _ => Want::token(&plan).with_drafts(asked.drafts),
                };
                let row = Row::new(asked.sequence, &asked.tokens, want);
                if asked.cancelled { row.with_cancel(&cancel_row) } else { row }
            })
            .collect();
        let (mut out, computed) = (StepOutput::new(), self.session.stats().tokens);
        let result = self.session.step(&rows, &Control::cancelled_by(&cancel), &mut out);
        self.expect("step", result, &[]);
        assert_eq!(out.rows().len(), asked.len(), "one answer a row");
        let mut named = Vec::new();
        let mut fed = 0;
        for (asked, answer) in asked.iter().zip(out.take()) {
            let mut allowed = self.obstacle(asked.sequence);
            let known = self.open.get(&asked.sequence);
            let length = known.map_or(0, |known| known.tokens.len());
            if asked.tokens.is_empty()
                || named.contains(&asked.sequence)
                || asked.tokens.iter().any(|&token| token as usize >= self.vocabulary)
            {
                allowed.push(ErrorKind::InvalidInput);
            }
            // Only a row that runs moves its sequence, so the length is that before the step.
            if !named.contains(&asked.sequence) && length + asked.tokens.len() > CAPACITY {
                allowed.push(ErrorKind::CapacityExceeded);
            }
            let capabilities = self.session.capabilities();
            let is_claimed = match asked.want {
                2 => capabilities.every_position,
                3 => capabilities.logits,
                4 => capabilities.verification,
                _ => true,
            };
            allowed.extend((!is_claimed).then_some(ErrorKind::Unsupported));
            let refused = !allowed.is_empty();
            if !refused {
                fed += self.answered(oracle, asked, answer, cancelled || asked.cancelled);
            } else {
                if asked.cancelled {
                    allowed.push(ErrorKind::Cancelled);
                }
                // A second row of a sequence that is full, now or after the first, may be told either.
                allowed.push(if named.contains(&asked.sequence) {
                    ErrorKind::CapacityExceeded
                } else {
                    allowed[0]
                });
                self.expect("refused row", answer, &allowed);
            }
            named.push(asked.sequence);
        }
        let stats = self.session.stats();
        assert!(
            stats.tokens >= computed + fed,
            "{} tokens more than {computed} are counted, not {fed}",
            stats.tokens
        );
        Ok(())
    }

    fn row(&self, choices: &mut Unstructured<'_>) -> arbitrary::Result<Asked> {
        let sequence = self.some(choices)?;
        let length = match choices.int_in_range(0..=31u8)? {
            0 => 0,
            1 => CAPACITY + 1,
            2..=9 => choices.int_in_range(1..=CAPACITY)?,
            10..=17 => choices.int_in_range(2..=6)?,
            _ => 1,
        };
        let mut tokens = Vec::new();
        for _ in 0..length {
            // Few different tokens, so that sequences have beginnings in common.
            tokens.push(u32::from(choices.int_in_range(0..=7u8)?));
        }
        if choices.int_in_range(0..=63u8)? == 0 {
            tokens.push(self.vocabulary as TokenId);
        }
        let (want, cancelled) = (choices.int_in_range(0..=4u8)?, choices.int_in_range(0..=31u8)? == 0);
        let drafts = choices.int_in_range(0..=9usize)?.min(tokens.len().saturating_sub(1));
        Ok(Asked { sequence, tokens, want, drafts, cancelled })
    }

    /// Holds the answer of a row that could run; gives how many tokens it fed.
    fn answered(
        &mut self,
        oracle: &mut Oracle,
        asked: &Asked,
        answer: Result<RowResult>,
        cancelled: bool,
    ) -> u64 {
        let exact = self.session.capabilities().bitwise_batch_invariance;
        let state = self.session.state(asked.sequence);
        self.note("row", &answer);
        let Some(known) = self.open.get_mut(&asked.sequence) else { return 0 };
        let before = known.tokens.len();
        match answer {
            Ok(answer) => {
                assert!(!cancelled, "a row ran that was cancelled before");
                known.tokens.extend(&asked.tokens);
                known.drafts = match asked.want {
                    4 => Drafts::From(known.tokens.len() - asked.drafts),
                    _ => Drafts::None,
                };
                check(oracle, &known.tokens, before, asked, &answer, exact);
                asked.tokens.len() as u64
            }
            Err(error) => {
                let kinds = [ErrorKind::Cancelled, ErrorKind::Device, ErrorKind::ResourceExhausted];
                assert!(kinds.contains(&error.kind()), "{error}");
                assert!((error.kind() == ErrorKind::Cancelled) == cancelled, "{error}");
                // It stands where the last whole chunk left it.
                let fed = state.as_ref().map_or(0, |state| state.position.saturating_sub(before));
                known.tokens.extend(asked.tokens.iter().take(fed));
                known.drafts = Drafts::Unknown;
                known.poisoned = error.kind() == ErrorKind::Device;
                if cancelled {
                    assert_eq!(fed, 0, "it was cancelled before");
                }
                fed as u64
            }
        }
    }
}

/// Holds what was answered after `tokens`, of which those from `before` on are new.
fn check(
    oracle: &mut Oracle,
    tokens: &[TokenId],
    before: usize,
    asked: &Asked,
    answer: &RowResult,
    exact: bool,
) {
    match (asked.want, answer) {
        (0, RowResult::Extended) => {}
        (1, RowResult::Tokens(chosen)) => {
            let [token] = &chosen[..] else { panic!("{} tokens", chosen.len()) };
            let logits = oracle.logits(tokens);
            best(logits, token.token, token.logprob, exact, tokens);
            assert_eq!(token.top.len(), 2.min(logits.len()));
            assert!(token.top[0].logprob >= token.top[1].logprob);
        }
        (2, RowResult::Likelihoods(positions)) => {
            assert_eq!(positions.len(), tokens.len() - before);
            for (place, position) in (before..).zip(positions) {
                best(
                    oracle.logits(&tokens[..=place]),
                    position.best.token,
                    position.best.logprob,
                    exact,
                    tokens,
                );
                assert_eq!(position.following.is_some(), place + 1 < tokens.len());
            }
        }
        (4, RowResult::Tokens(chosen)) => {
            assert_eq!(chosen.len(), asked.drafts + 1);
            for (place, token) in (tokens.len() - asked.drafts..).zip(chosen) {
                best(oracle.logits(&tokens[..place]), token.token, token.logprob, exact, tokens);
            }
        }
        (_, RowResult::Logits(rows)) => {
            let [logits] = &rows[..] else { panic!("logits at {} positions", rows.len()) };
            let expected = oracle.logits(tokens);
            assert_eq!(logits.len(), expected.len());
            let largest = expected.iter().fold(1e-3, |most: f32, logit| most.max(logit.abs()));
            let allowed = if exact { 0.0 } else { TOLERANCE * largest };
            for (at, (logit, expected)) in logits.iter().zip(expected).enumerate() {
                assert!(
                    (logit - expected).abs() <= allowed,
                    "logit {at} after {tokens:?}: {logit}, alone {expected}"
                );
            }
        }
        (want, other) => panic!("want {want} was answered with {other:?}"),
    }
}

/// Holds the most likely token and its log probability.
fn best(logits: &[f32], token: TokenId, logprob: f32, exact: bool, tokens: &[TokenId]) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
    let found = logits.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
    let slack = TOLERANCE * logits.iter().fold(1e-3, |most: f32, logit| most.max(logit.abs()));
    assert!(
        found >= largest - if exact { 0.0 } else { slack },
        "token {token} after {tokens:?} is not the most likely"
    );
    let expected = f64::from(found - largest) - sum.ln();
    let allowed = if exact { 1e-3 } else { f64::from(2.0 * slack).max(1e-3) };
    assert!(
        (f64::from(logprob) - expected).abs() <= allowed,
        "log probability {logprob} of {token}, not {expected}"
    );
}
