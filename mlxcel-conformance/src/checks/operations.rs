//! Random operations, against a model of a session: for each open sequence the tokens that it holds.

use std::collections::BTreeMap;
use std::fmt;

use mlxcel_core::{
    CancelToken, Capabilities, Control, ErrorKind, InferenceSession, InferenceSessionExt, Row, RowResult,
    SampledToken, SamplingPlan, SequenceId, SessionOptions, Snapshot, TokenId, Want,
};
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, prop_oneof};
use proptest::sample::Index;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use crate::failure::{Failure, Outcome, ensure, refused};
use crate::outlook::{expect_logits, expect_token, same_logits, stands_at, step};
use crate::subject::Subject;

/// One operation on a session. Indices choose among the open sequences and snapshots of that time.
#[derive(Clone)]
enum Operation {
    Open,
    Close(Index),
    Step(Vec<Draft>),
    CancelledStep(Index),
    Rewind(Index, Index),
    Fork(Index),
    Snapshot(Index),
    Restore(Index),
}

/// One row of a step.
#[derive(Clone)]
struct Draft {
    sequence: Index,
    /// Its tokens: the number of their text, and their count.
    text: usize,
    length: usize,
    asks: Asks,
    flaw: Flaw,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asks {
    Nothing,
    Next,
    Logits,
    EveryPosition,
}

/// The flaw of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    NoTokens,
    BeyondVocabulary,
    NoSuchSequence,
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => f.write_str("open"),
            Self::Close(_) => f.write_str("close"),
            Self::Step(drafts) => {
                f.write_str("step")?;
                drafts.iter().try_for_each(|draft| write!(f, " {draft:?}"))
            }
            Self::CancelledStep(_) => f.write_str("cancelled step"),
            Self::Rewind(..) => f.write_str("rewind"),
            Self::Fork(_) => f.write_str("fork"),
            Self::Snapshot(_) => f.write_str("snapshot"),
            Self::Restore(_) => f.write_str("restore"),
        }
    }
}

impl fmt::Debug for Draft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{} tokens, wants {:?}", self.length, self.asks)?;
        if self.flaw != Flaw::None {
            write!(f, ", {:?}", self.flaw)?;
        }
        f.write_str("]")
    }
}

fn drafts() -> impl Strategy<Value = Draft> {
    let length = prop_oneof![6 => Just(1usize), 5 => 2usize..12, 1 => 60usize..70];
    let asks = prop_oneof![
        2 => Just(Asks::Nothing),
        5 => Just(Asks::Next),
        1 => Just(Asks::Logits),
        1 => Just(Asks::EveryPosition)
    ];
    let flaw = prop_oneof![
        24 => Just(Flaw::None),
        1 => Just(Flaw::NoTokens),
        1 => Just(Flaw::BeyondVocabulary),
        1 => Just(Flaw::NoSuchSequence)
    ];
    (proptest::prelude::any::<Index>(), 0usize..4, length, asks, flaw)
        .prop_map(|(sequence, text, length, asks, flaw)| Draft { sequence, text, length, asks, flaw })
}

fn operations_of(claimed: &Capabilities) -> impl Strategy<Value = Vec<Operation>> {
    let index = proptest::prelude::any::<Index>;
    // Unclaimed operations are also tried sometimes: they must change nothing.
    let weight = |claimed: bool, weight: u32| if claimed { weight } else { 1 };
    let operation = prop_oneof![
        5 => Just(Operation::Open),
        2 => index().prop_map(Operation::Close),
        14 => vec(drafts(), 1..4).prop_map(Operation::Step),
        1 => index().prop_map(Operation::CancelledStep),
        weight(claimed.rewind, 4) => (index(), index()).prop_map(|(sequence, to)| Operation::Rewind(sequence, to)),
        weight(claimed.fork, 3) => index().prop_map(Operation::Fork),
        weight(claimed.snapshot, 2) => index().prop_map(Operation::Snapshot),
        weight(claimed.snapshot, 2) => index().prop_map(Operation::Restore),
    ];
    vec(operation, 4..24)
}

/// For any order of open, step, cancel, rewind, fork, snapshot and close, positions, limits, errors and
/// tokens are those of the tokens each sequence was fed. Runs [`Subject::with_cases`] random sequences of
/// operations, and minimizes one that fails.
///
/// Kills: `forgets_between_steps`, `fork_shares_state`, `rewinds_in_name_only`, `snapshot_forgets_a_token`,
/// `unforks_on_rewind`.
pub fn operations(subject: &Subject<'_>) -> Outcome {
    let model = subject.model()?;
    let config = Config {
        cases: subject.cases,
        max_shrink_iters: 512,
        failure_persistence: None,
        ..Config::default()
    };
    // Deterministic, so that a failure can be reproduced.
    let random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config, random);
    let outcome = runner.run(&operations_of(model.capabilities()), |operations| {
        play(subject, &operations).map_err(|failure| TestCaseError::fail(failure.message().to_owned()))
    });
    outcome.map_err(|error| match error {
        TestError::Fail(reason, operations) => {
            Failure::new(format!("{reason}, after these operations: {operations:?}"))
        }
        TestError::Abort(reason) => Failure::new(format!("the operations could not be generated: {reason}")),
    })
}

fn play(subject: &Subject<'_>, operations: &[Operation]) -> Outcome {
    let model = subject.model()?;
    let capacity = model.info().capacity.min(96);
    let mut machine = Machine {
        subject,
        session: model.open_session(&SessionOptions::default().with_capacity(capacity))?,
        claimed: model.capabilities().clone(),
        capacity,
        open: BTreeMap::new(),
        closed: Vec::new(),
        snapshots: Vec::new(),
        tokens: 0,
    };
    for (number, operation) in operations.iter().enumerate() {
        machine.run(operation).map_err(|failure| failure.during(format_args!("operation {number}")))?;
        machine.compare().map_err(|failure| failure.during(format_args!("after operation {number}")))?;
    }
    Ok(())
}

/// A session, and its expected state.
struct Machine<'a> {
    subject: &'a Subject<'a>,
    session: Box<dyn InferenceSession>,
    claimed: Capabilities,
    capacity: usize,
    /// The tokens of each open sequence.
    open: BTreeMap<SequenceId, Vec<TokenId>>,
    closed: Vec<SequenceId>,
    snapshots: Vec<(Snapshot, Vec<TokenId>)>,
    /// The number of tokens fed so far.
    tokens: u64,
}

impl Machine<'_> {
    fn run(&mut self, operation: &Operation) -> Outcome {
        match operation {
            Operation::Open => {
                let opened = self.session.open();
                self.opened(opened, Vec::new(), "open")
            }
            Operation::Close(index) => {
                let Some(sequence) = self.choose(index) else { return Ok(()) };
                self.session.close(sequence)?;
                self.open.remove(&sequence);
                self.closed.push(sequence);
                Ok(())
            }
            Operation::Step(drafts) => self.step(drafts),
            Operation::CancelledStep(index) => {
                let Some(sequence) = self.choose(index) else { return Ok(()) };
                let cancel = CancelToken::new();
                cancel.cancel();
                let result =
                    self.session.run_row(Row::extend(sequence, &[0]), &Control::cancelled_by(&cancel));
                match self.open[&sequence].len() == self.capacity {
                    true => refused(result, ErrorKind::CapacityExceeded, "a token for a full sequence"),
                    false => refused(result, ErrorKind::Cancelled, "a cancelled step"),
                }
            }
            Operation::Rewind(index, to) => {
                let Some(sequence) = self.choose(index) else { return Ok(()) };
                let held = self.open.entry(sequence).or_default();
                let position = to.index(held.len() + 1);
                let result = self.session.rewind(sequence, position);
                if !self.claimed.rewind {
                    return refused(result, ErrorKind::Unsupported, "rewind");
                }
                held.truncate(position);
                Ok(result?)
            }
            Operation::Fork(index) => {
                let Some(sequence) = self.choose(index) else { return Ok(()) };
                let forked = self.session.fork(sequence);
                if !self.claimed.fork {
                    return refused(forked, ErrorKind::Unsupported, "fork");
                }
                self.opened(forked, self.open[&sequence].clone(), "fork")
            }
            Operation::Snapshot(index) => {
                let Some(sequence) = self.choose(index) else { return Ok(()) };
                let snapshot = self.session.snapshot(sequence);
                if !self.claimed.snapshot {
                    return refused(snapshot, ErrorKind::Unsupported, "snapshot");
                }
                self.snapshots.push((snapshot?, self.open[&sequence].clone()));
                Ok(())
            }
            Operation::Restore(index) => {
                if self.snapshots.is_empty() {
                    return Ok(());
                }
                let (snapshot, held) = index.get(&self.snapshots).clone();
                let restored = self.session.restore(&snapshot);
                self.opened(restored, held, "restore")
            }
        }
    }

    /// One of the open sequences.
    fn choose(&self, index: &Index) -> Option<SequenceId> {
        let open: Vec<_> = self.open.keys().copied().collect();
        (!open.is_empty()).then(|| *index.get(&open))
    }

    /// Records a sequence that was opened with the tokens of `held`, or should not have been.
    fn opened(&mut self, opened: mlxcel_core::Result<SequenceId>, held: Vec<TokenId>, what: &str) -> Outcome {
        if self.open.len() == self.claimed.sequences {
            return refused(opened, ErrorKind::CapacityExceeded, what);
        }
        let sequence = opened?;
        ensure!(
            !self.open.contains_key(&sequence) && !self.closed.contains(&sequence),
            "{what} returned the id {sequence} a second time"
        );
        self.open.insert(sequence, held);
        Ok(())
    }

    fn step(&mut self, drafts: &[Draft]) -> Outcome {
        let plan = SamplingPlan::greedy();
        let vocabulary = self.subject.model()?.info().vocabulary_size as TokenId;
        let mut planned: Vec<Planned> = Vec::new();
        for draft in drafts {
            let Some(sequence) = self.choose(&draft.sequence) else { break };
            let mut row = Planned {
                sequence,
                tokens: self.subject.tokens(draft.text, draft.length)?,
                asks: draft.asks,
                refusals: Vec::new(),
            };
            match draft.flaw {
                // The first of two rows of a sequence decides the second's error; after a flawed one, the
                // second is skipped.
                _ if planned.iter().any(|earlier| earlier.sequence == sequence) => {
                    if planned.iter().any(|row| row.sequence == sequence && !row.refusals.is_empty()) {
                        continue;
                    }
                    row.refusals.extend([ErrorKind::InvalidInput, ErrorKind::CapacityExceeded]);
                }
                Flaw::None if self.open[&sequence].len() + row.tokens.len() > self.capacity => {
                    row.refusals.push(ErrorKind::CapacityExceeded);
                }
                Flaw::None => {}
                Flaw::NoTokens => {
                    row.tokens.clear();
                    row.refusals.push(ErrorKind::InvalidInput);
                }
                Flaw::BeyondVocabulary => {
                    row.tokens = vec![vocabulary];
                    row.refusals.extend([ErrorKind::InvalidInput, ErrorKind::CapacityExceeded]);
                }
                Flaw::NoSuchSequence => {
                    row.sequence =
                        self.closed.first().copied().unwrap_or_else(|| SequenceId::new(u64::MAX - 1));
                    row.refusals.push(ErrorKind::NotFound);
                }
            }
            planned.push(row);
        }
        if planned.is_empty() {
            return Ok(());
        }
        let alone = planned.len() == 1;
        let rows: Vec<Row<'_>> = planned
            .iter_mut()
            .map(|row| {
                row.asks = row.asks.within(&self.claimed, alone);
                let want = match row.asks {
                    Asks::Nothing => Want::nothing(),
                    Asks::Next => Want::token(&plan),
                    Asks::Logits => Want::logits(),
                    Asks::EveryPosition => Want::likelihoods(0),
                };
                Row::new(row.sequence, &row.tokens, want)
            })
            .collect();
        let results = step(&mut *self.session, &rows)?;
        for (number, (row, result)) in planned.iter().zip(results).enumerate() {
            self.answered(row, result).map_err(|failure| failure.during(format_args!("row {number}")))?;
        }
        Ok(())
    }

    /// Checks the result of a row, and records its tokens.
    fn answered(&mut self, row: &Planned, result: mlxcel_core::Result<RowResult>) -> Outcome {
        if !row.refusals.is_empty() {
            let Err(error) = result else { return Err(Failure::new("an invalid row ran")) };
            ensure!(
                row.refusals.contains(&error.kind()),
                "an invalid row is refused as `{}`, not as one of {:?}: {error}",
                error.kind(),
                row.refusals
            );
            return Ok(());
        }
        let result = result?;
        self.tokens += row.tokens.len() as u64;
        let held = self.open.entry(row.sequence).or_default();
        let start = held.len();
        held.extend(&row.tokens);
        let held = &self.open[&row.sequence];
        match (row.asks, result) {
            (Asks::Nothing, RowResult::Extended) => Ok(()),
            (Asks::Next, result) => self.subject.agrees(&expect_token(result)?, held, "the next token"),
            (Asks::Logits, result) => {
                let logits = expect_logits(result)?;
                match self.subject.outlook(held)?.logits {
                    Some(expected) => {
                        same_logits(&logits, &expected, &self.subject.tolerance()?, "its logits")
                    }
                    None => Ok(()),
                }
            }
            (Asks::EveryPosition, RowResult::Likelihoods(positions)) => {
                ensure!(positions.len() == row.tokens.len(), "{} positions", positions.len());
                // First and last are enough.
                [0, positions.len() - 1].into_iter().try_for_each(|i| {
                    let best = SampledToken::new(positions[i].best.token, positions[i].best.logprob);
                    self.subject.agrees(&best, &held[..start + i + 1], format_args!("position {i}"))
                })
            }
            (asks, _) => Err(Failure::new(format!("a row that wants {asks:?} got another kind of result"))),
        }
    }

    /// Compares the state that the session reports.
    fn compare(&self) -> Outcome {
        for (&sequence, held) in &self.open {
            stands_at(&*self.session, sequence, held.len())?;
        }
        if let Some(&closed) = self.closed.last() {
            refused(self.session.state(closed), ErrorKind::NotFound, "a closed sequence")?;
        }
        let counted = self.session.stats().tokens;
        ensure!(counted == self.tokens, "{} tokens were fed, and {counted} counted", self.tokens);
        Ok(())
    }
}

/// A row that is about to run.
struct Planned {
    sequence: SequenceId,
    tokens: Vec<TokenId>,
    asks: Asks,
    /// The kinds of error that it may return; none for a valid row.
    refusals: Vec<ErrorKind>,
}

impl Asks {
    /// The nearest want that the engine claims. Only a single row may want every position: an engine that
    /// compiles makes a program for each combination, and there would be many.
    fn within(self, claimed: &Capabilities, alone: bool) -> Self {
        match self {
            Self::Logits if !claimed.logits => Self::Next,
            Self::EveryPosition if !claimed.every_position || !alone => Self::Next,
            asks => asks,
        }
    }
}
