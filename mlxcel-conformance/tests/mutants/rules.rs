//! Mutants that break the rules of rows, limits and counters.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mlxcel_core::reference::ReferenceBackend;
use mlxcel_core::{
    Capabilities, Control, Error, ErrorKind, LoadOptions, Result, Row, RowResult, SequenceId, SequenceState,
    SessionStats, Snapshot, TokenId,
};

use crate::mutants::Mutants;
use crate::mutants::conduct::{
    BoundToThread, CancelLoses, CancelOverstates, CancelSticks, CancelledRowStopsAll, DiesWithModel,
    IgnoresCancel, IgnoresCancelledRows, NoticesAtTheStart, PoisonStays, Poisons, ServesOneThread,
    SessionsAreOne, ShortMemoryFeeds,
};
use crate::mutants::state::ForksBeyond;
use crate::mutants::twist::{Broken, Inner, Results, Twist, step};

pub(crate) const LOADS: Mutants<fn(&mut LoadOptions)> = &[
    ("ignores_load_capacity", |options| options.capacity = None),
    ("ignores_cancelled_load", |options| options.cancel = None),
];

pub(crate) const CLAIMS: Mutants<fn(&mut Capabilities)> = &[
    ("overstates_prompt_chunk", |claimed| claimed.prompt_chunk += 1),
    ("understates_prompt_chunk", |claimed| claimed.prompt_chunk -= 1),
    ("understates_snapshot_bytes", |claimed| {
        claimed.snapshot_bytes = claimed.snapshot_bytes.map(|most| most - 1);
    }),
    ("overstates_snapshot_bytes", |claimed| {
        claimed.snapshot_bytes = claimed.snapshot_bytes.map(|most| 3 * most);
    }),
    ("performs_unclaimed_operations", |claimed| {
        (claimed.rewind, claimed.every_position, claimed.token_masks) = (false, false, false);
        claimed.hidden_states = None;
    }),
];

pub(crate) const OTHERS: Mutants<fn(ReferenceBackend) -> Broken> = &[
    ("misstates_capacity", |reference| Broken { info: |info| info.capacity -= 1, ..Broken::new(reference) }),
    ("ignores_session_capacity", |reference| Broken {
        session: |options, _| options.capacity = None,
        ..Broken::new(reference)
    }),
    ("capacity_one_short", |reference| Broken {
        session: |options, info| options.capacity = Some(options.capacity.unwrap_or(info.capacity) - 1),
        twist: Arc::new(|| Box::new(OtherCapacity(1))),
        ..Broken::new(reference)
    }),
    ("capacity_one_beyond", |reference| Broken {
        session: |options, info| {
            options.capacity = options.capacity.map(|capacity| info.capacity.min(capacity + 1));
        },
        twist: Arc::new(|| Box::new(OtherCapacity(-1))),
        ..Broken::new(reference)
    }),
    ("opens_one_too_many", one_too_many),
    ("forks_beyond_the_limit", |reference| Broken {
        twist: Arc::new(|| Box::new(ForksBeyond::default())),
        ..one_too_many(reference)
    }),
    ("cancel_overstates_the_position", |reference| slow(reference, || Box::new(CancelOverstates::default()))),
    ("notices_cancel_before_steps_alone", |reference| {
        slow(reference, || Box::new(NoticesAtTheStart { steps: true }))
    }),
    ("notices_cancelled_rows_before_steps_alone", |reference| {
        slow(reference, || Box::new(NoticesAtTheStart { steps: false }))
    }),
];

/// An engine with room for a sequence more than it claims.
fn one_too_many(reference: ReferenceBackend) -> Broken {
    Broken {
        load: |options| options.sequences = Some(options.sequences.unwrap_or(4) + 1),
        claims: |claimed| claimed.sequences -= 1,
        ..Broken::new(reference)
    }
}

/// An engine so slow that a prompt is cancelled under way, however busy the machine is.
fn slow(reference: ReferenceBackend, twist: fn() -> Box<dyn Twist>) -> Broken {
    Broken { twist: Arc::new(twist), ..Broken::new(reference.with_delay(Duration::from_millis(5))) }
}

pub(crate) const TWISTS: Mutants<fn() -> Box<dyn Twist>> = &[
    ("keeps_closed_sequences", || Box::new(KeepsClosed)),
    ("reuses_ids", || Box::new(ReusesIds::default())),
    ("session_dies_with_model", || Box::new(DiesWithModel)),
    ("bound_to_thread", || Box::new(BoundToThread::default())),
    ("serves_one_thread", || Box::new(ServesOneThread)),
    ("sessions_are_one", || Box::new(SessionsAreOne)),
    ("counts_rows_as_tokens", || Box::new(CountsRows::default())),
    ("takes_rows_in_turns", || Box::new(TakesTurns)),
    ("miscounts_passes", || Box::new(Miscounts(|stats| stats.passes += stats.passes / 3))),
    ("miscounts_tokens", || Box::new(Miscounts(|stats| stats.tokens = stats.passes))),
    ("stats_fall", || Box::new(StatsFall::default())),
    ("fills_up_before_rejecting", || Box::new(Overfull { refuses: true })),
    ("truncates_rows_at_the_capacity", || Box::new(Overfull { refuses: false })),
    ("accepts_no_rows", || Box::new(AcceptsNoRows)),
    ("accepts_empty_rows", || Box::new(AcceptsEmptyRows)),
    ("wraps_tokens", || Box::new(WrapsTokens)),
    ("accepts_duplicates", || Box::new(AcceptsDuplicates)),
    ("one_bad_row_fails_all", || Box::new(BadRows { fail_all: true })),
    ("omits_bad_rows", || Box::new(BadRows { fail_all: false })),
    ("ignores_cancel", || Box::new(IgnoresCancel)),
    ("ignores_cancelled_rows", || Box::new(IgnoresCancelledRows)),
    ("cancelled_row_stops_the_others", || Box::new(CancelledRowStopsAll)),
    ("cancel_loses_a_token", || Box::new(CancelLoses)),
    ("cancel_sticks", || Box::new(CancelSticks::default())),
    ("poison_cannot_be_closed", || Box::new(PoisonStays)),
    ("faults_poison_all", || Box::new(Poisons::all_by(ErrorKind::Device))),
    ("short_memory_poisons", || Box::new(Poisons::rows_by(ErrorKind::ResourceExhausted))),
    ("short_memory_feeds", || Box::new(ShortMemoryFeeds)),
];

/// Says that a sequence holds more or less than it does.
struct OtherCapacity(isize);

impl Twist for OtherCapacity {
    fn state(&self, inner: &Inner, sequence: SequenceId) -> Result<SequenceState> {
        let mut state = inner.session.state(sequence)?;
        state.capacity = state.capacity.saturating_add_signed(self.0);
        Ok(state)
    }
}

struct KeepsClosed;

impl Twist for KeepsClosed {
    fn close(&mut self, inner: &mut Inner, sequence: SequenceId) -> Result<()> {
        inner.session.state(sequence).map(drop)
    }
}

/// Gives the lowest number that is free.
#[derive(Default)]
struct ReusesIds {
    real: BTreeMap<SequenceId, SequenceId>,
}

impl ReusesIds {
    fn number(&mut self, real: SequenceId) -> SequenceId {
        let free = (0..).map(SequenceId::new).find(|id| !self.real.contains_key(id)).unwrap();
        self.real.insert(free, real);
        free
    }
    fn real(&self, sequence: SequenceId) -> SequenceId {
        self.real.get(&sequence).copied().unwrap_or(SequenceId::new(u64::MAX))
    }
}

impl Twist for ReusesIds {
    fn open(&mut self, inner: &mut Inner) -> Result<SequenceId> {
        let real = inner.session.open()?;
        Ok(self.number(real))
    }
    fn close(&mut self, inner: &mut Inner, sequence: SequenceId) -> Result<()> {
        inner.session.close(self.real(sequence))?;
        self.real.remove(&sequence);
        Ok(())
    }
    fn state(&self, inner: &Inner, sequence: SequenceId) -> Result<SequenceState> {
        inner.session.state(self.real(sequence))
    }
    fn step(&mut self, inner: &mut Inner, rows: &[Row<'_>], control: &Control<'_>) -> Results {
        let rows: Vec<_> =
            rows.iter().map(|row| Row::new(self.real(row.sequence), row.tokens, row.want)).collect();
        inner.step(&rows, control)
    }
    fn fork(&mut self, inner: &mut Inner, sequence: SequenceId) -> Result<SequenceId> {
        let real = inner.session.fork(self.real(sequence))?;
        Ok(self.number(real))
    }
    fn restore(&mut self, inner: &mut Inner, snapshot: &Snapshot) -> Result<SequenceId> {
        let real = inner.session.restore(snapshot)?;
        Ok(self.number(real))
    }
}

/// A position is how often the sequence was stepped.
#[derive(Default)]
struct CountsRows {
    rows: BTreeMap<SequenceId, usize>,
}

impl Twist for CountsRows {
    fn state(&self, inner: &Inner, sequence: SequenceId) -> Result<SequenceState> {
        let mut state = inner.session.state(sequence)?;
        state.position = self.rows.get(&sequence).copied().unwrap_or(0);
        Ok(state)
    }
    fn step(&mut self, inner: &mut Inner, rows: &[Row<'_>], control: &Control<'_>) -> Results {
        rows.iter().for_each(|row| *self.rows.entry(row.sequence).or_default() += 1);
        inner.step(rows, control)
    }
}

/// Claims batches, and computes one row after another.
struct TakesTurns;

impl Twist for TakesTurns {
    fn step(&mut self, inner: &mut Inner, rows: &[Row<'_>], control: &Control<'_>) -> Results {
        let mut results = Vec::new();
        for row in rows {
            results.extend(inner.step(&[*row], control)?);
        }
        Ok(results)
    }
}

struct Miscounts(fn(&mut SessionStats));

impl Twist for Miscounts {
    fn stats(&self, inner: &Inner) -> SessionStats {
        let mut stats = inner.session.stats();
        (self.0)(&mut stats);
        stats
    }
}

/// Counts the tokens of open sequences alone.
#[derive(Default)]
struct StatsFall {
    closed: u64,
}

impl Twist for StatsFall {
    fn close(&mut self, inner: &mut Inner, sequence: SequenceId) -> Result<()> {
        self.closed += inner.session.state(sequence)?.position as u64;
        inner.session.close(sequence)
    }
    fn stats(&self, inner: &Inner) -> SessionStats {
        let mut stats = inner.session.stats();
        stats.tokens -= self.closed;
        stats
    }
}

/// Feeds of a row what fits, and refuses the rest; or does not even do that.
struct Overfull {
    refuses: bool,
}

impl Twist for Overfull {
    fn step(&mut self, inner: &mut Inner, rows: &[Row<'_>], control: &Control<'_>) -> Results {
        let fitting = |row: &Row<'_>| {
            let room = inner.session.state(row.sequence).map_or(0, |state| state.remaining());
            if room == 0 { row.tokens.len() } else { row.tokens.len().min(room) }
        };
        let lengths: Vec<_> = rows.iter().map(fitting).collect();
        let cut: Vec<_> = rows
            .iter()
            .zip(&lengths)
            .map(|(row, &length)| Row::new(row.sequence, &row.tokens[..length], row.want))
            .collect();
        let results = inner.step(&cut, control)?;
        let results = results.into_iter().zip(rows).zip(lengths).map(|((result, row), length)| {
            if self.refuses && length < row.tokens.len() {
                return Err(Error::new(ErrorKind::CapacityExceeded, "step", "no more fits"));
            }
            result
        });
        Ok(results.collect())
    }
}

struct AcceptsNoRows;

impl Twist for AcceptsNoRows {
    fn step(&mut self, inner: &mut Inner, rows: &[Row<'_>], control: &Control<'_>) -> Results {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        inner.step(rows, control)
    }
}

struct AcceptsEmptyRows;

impl Twist for AcceptsEmptyRows {
    fn step(&mut self, inner: &mut Inner, rows: &[Row<'_>], control: &Control<'_>) -> Results {
        let results = inner.step(rows, control)?;
        let results = results.into_iter().zip(rows);
        let results =
            results.map(|(result, row)| if row.tokens.is_empty() { Ok(RowResult::Extended) } else { result });
        Ok(results.collect())
    }
}

struct WrapsTokens;

impl Twist for WrapsTokens {
    fn step(&mut self, inner: &mut Inner, rows: &[Row<'_>], control: &Control<'_>) -> Results {
        let wrapped: Vec<Vec<TokenId>> =
            rows.iter().map(|row| row.tokens.iter().map(|token| token % 64).collect()).collect();
        let rows: Vec<_> =
            rows.iter().zip(&wrapped).map(|(row, tokens)| Row::new(row.sequence, tokens, row.want)).collect();
        inner.step(&rows, control)
    }
}

/// Feeds the second row of a sequence after the first.
struct AcceptsDuplicates;

impl Twist for AcceptsDuplicates {
    fn step(&mut self, inner: &mut Inner, rows: &[Row<'_>], control: &Control<'_>) -> Results {
        let is_second = |i: usize| rows[..i].iter().any(|earlier| earlier.sequence == rows[i].sequence);
        let mut results = inner.step(rows, control)?;
        for i in (0..rows.len()).filter(|&i| is_second(i)) {
            results[i] = step(&mut *inner.session, &rows[i..=i])?.remove(0);
        }
        Ok(results)
    }
}

/// The error of one row is that of the step; or the row has no answer at all.
struct BadRows {
    fail_all: bool,
}

impl Twist for BadRows {
    fn step(&mut self, inner: &mut Inner, rows: &[Row<'_>], control: &Control<'_>) -> Results {
        let mut results = inner.step(rows, control)?;
        if rows.len() > 1 {
            match results.iter().find_map(|result| result.as_ref().err()) {
                Some(error) if self.fail_all => return Err(error.clone()),
                _ => results.retain(Result::is_ok),
            }
        }
        Ok(results)
    }
}

/// Runs out of paper.
pub(crate) struct Panics;

impl Twist for Panics {
    fn state(&self, _: &Inner, _: SequenceId) -> Result<SequenceState> {
        panic!("out of paper")
    }
}
