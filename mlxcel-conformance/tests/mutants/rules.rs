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
use crate::mutants::conduct::{CancelOverstates, NoticesAtTheStart};
use crate::mutants::state::ForksBeyond;
use crate::mutants::twist::{Broken, Closing, Inner, Results, State, Stepping, Twist, step};

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
        twist: Arc::new(|| Box::new(State(|state| state.capacity += 1))),
        ..Broken::new(reference)
    }),
    ("capacity_one_beyond", |reference| Broken {
        session: |options, info| {
            options.capacity = options.capacity.map(|capacity| info.capacity.min(capacity + 1));
        },
        twist: Arc::new(|| Box::new(State(|state| state.capacity -= 1))),
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
    ("reuses_ids", || Box::new(ReusesIds::default())),
    ("counts_rows_as_tokens", || Box::new(CountsRows::default())),
    ("stats_fall", || Box::new(StatsFall::default())),
    ("fills_up_before_rejecting", || Box::new(Overfull { refuses: true })),
    ("truncates_rows_at_the_capacity", || Box::new(Overfull { refuses: false })),
];

pub(crate) const STATS: Mutants<fn(&mut SessionStats)> = &[
    ("miscounts_passes", |stats| stats.passes += stats.passes / 3),
    ("miscounts_tokens", |stats| stats.tokens = stats.passes),
];

pub(crate) const CLOSES: Mutants<Closing> =
    &[("keeps_closed_sequences", |inner, sequence| inner.session.state(sequence).map(drop))];

pub(crate) const STEPS: Mutants<Stepping> = &[
    // Claims batches, and computes one row after another.
    ("takes_rows_in_turns", |inner, rows, control| {
        let mut results = Vec::new();
        for row in rows {
            results.extend(inner.step(&[*row], control)?);
        }
        Ok(results)
    }),
    ("accepts_no_rows", |inner, rows, control| match rows {
        [] => Ok(Vec::new()),
        rows => inner.step(rows, control),
    }),
    ("accepts_empty_rows", |inner, rows, control| {
        let results = inner.step(rows, control)?.into_iter().zip(rows);
        let accepted = |(result, row): (_, &Row<'_>)| {
            if row.tokens.is_empty() { Ok(RowResult::Extended) } else { result }
        };
        Ok(results.map(accepted).collect())
    }),
    ("wraps_tokens", |inner, rows, control| {
        let wrapped: Vec<Vec<TokenId>> =
            rows.iter().map(|row| row.tokens.iter().map(|token| token % 64).collect()).collect();
        let rows: Vec<_> =
            rows.iter().zip(&wrapped).map(|(row, tokens)| Row::new(row.sequence, tokens, row.want)).collect();
        inner.step(&rows, control)
    }),
    // Feeds the second row of a sequence after the first.
    ("accepts_duplicates", |inner, rows, control| {
        let is_second = |i: usize| rows[..i].iter().any(|earlier| earlier.sequence == rows[i].sequence);
        let mut results = inner.step(rows, control)?;
        for i in (0..rows.len()).filter(|&i| is_second(i)) {
            results[i] = step(&mut *inner.session, &rows[i..=i])?.remove(0);
        }
        Ok(results)
    }),
    // The error of one row is that of the step.
    ("one_bad_row_fails_all", |inner, rows, control| {
        let results = inner.step(rows, control)?;
        match results.iter().find_map(|result| result.as_ref().err()) {
            Some(error) if rows.len() > 1 => Err(error.clone()),
            _ => Ok(results),
        }
    }),
    // A bad row has no answer at all.
    ("omits_bad_rows", |inner, rows, control| {
        let mut results = inner.step(rows, control)?;
        results.retain(|result| rows.len() == 1 || result.is_ok());
        Ok(results)
    }),
];

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
        inner.session.open().map(|real| self.number(real))
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
        inner.session.fork(self.real(sequence)).map(|real| self.number(real))
    }
    fn restore(&mut self, inner: &mut Inner, snapshot: &Snapshot) -> Result<SequenceId> {
        inner.session.restore(snapshot).map(|real| self.number(real))
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
        let mut fitting = rows.to_vec();
        for row in &mut fitting {
            let room = inner.session.state(row.sequence).map_or(0, |state| state.remaining());
            if room > 0 {
                row.tokens = &row.tokens[..row.tokens.len().min(room)];
            }
        }
        let results = inner.step(&fitting, control)?;
        let results = results.into_iter().zip(rows).zip(&fitting).map(|((result, row), fitting)| {
            if self.refuses && fitting.tokens.len() < row.tokens.len() {
                return Err(Error::new(ErrorKind::CapacityExceeded, "step", "no more fits"));
            }
            result
        });
        Ok(results.collect())
    }
}
