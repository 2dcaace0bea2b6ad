//! Mutants whose sequences and forks hold something else than they should.

use std::collections::{BTreeMap, BTreeSet};

use mlxcel_core::{
    Control, Error, ErrorKind, Result, Row, SequenceId, SequenceState, SessionStats, Snapshot, TokenId,
};

use crate::mutants::Mutants;
use crate::mutants::twist::{Inner, Results, Twist, rewrite, step, text, tokens_of};

pub(crate) const TWISTS: Mutants<fn() -> Box<dyn Twist>> = &[
    ("close_harms_a_neighbour", || Box::new(CloseHarmsNeighbours)),
    ("rewinds_in_name_only", || Box::new(Rewinds::new(|_, held| held))),
    ("rewinds_one_short", || Box::new(Rewinds::new(|to, held| (to + 1).min(held)))),
    ("rewinds_well_once", || Box::new(RewindsOnce::default())),
    ("rewinds_a_window", || Box::new(RewindsWindow)),
    ("fork_loses_wrapped_positions", || Box::new(ForkLosesWrapped)),
    ("snapshot_loses_wrapped_positions", || Box::new(RestoreLosesWrapped)),
    ("windows_grow", || Box::new(WindowsGrow::default())),
    ("rewinds_forward", || Box::new(RewindsForward)),
    ("rewind_computes_again", || Box::new(RewindComputes)),
    ("fork_forgets_a_token", || Box::new(ForkForgets)),
    ("fork_computes_again", || Box::new(ForkComputes)),
    ("fork_shares_state", || Box::new(ForkShares::default())),
    ("unforks_on_rewind", || Box::new(UnforksOnRewind::default())),
    ("forgets_poison", || Box::new(ForgetsPoison::default())),
];

/// `tokens` with another one at the end.
pub(super) fn misremembered(mut tokens: Vec<TokenId>) -> Vec<TokenId> {
    if let Some(last) = tokens.last_mut() {
        *last = (*last + 1) % 64;
    }
    tokens
}

/// Opens a sequence that holds `tokens` by computing them.
pub(super) fn recompute(inner: &mut Inner, tokens: &[TokenId]) -> Result<SequenceId> {
    let sequence = inner.session.open()?;
    if !tokens.is_empty() {
        step(&mut *inner.session, &[Row::extend(sequence, tokens)])?.remove(0)?;
    }
    Ok(sequence)
}

/// Closing a sequence spoils the cache of the others.
struct CloseHarmsNeighbours;

impl Twist for CloseHarmsNeighbours {
    fn close(&mut self, inner: &mut Inner, sequence: SequenceId) -> Result<()> {
        inner.session.close(sequence)?;
        for number in 0..sequence.number() + 16 {
            let other = SequenceId::new(number);
            if inner.session.state(other).is_ok() {
                let held = text(&mut *inner.session, other);
                rewrite(&mut *inner.session, other, &misremembered(held));
            }
        }
        Ok(())
    }
}

/// Says that it went back, and keeps more than it should.
struct Rewinds {
    keeps: fn(to: usize, held: usize) -> usize,
    /// How many tokens too many a sequence holds.
    beyond: BTreeMap<SequenceId, usize>,
}

impl Rewinds {
    fn new(keeps: fn(usize, usize) -> usize) -> Self {
        Self { keeps, beyond: BTreeMap::new() }
    }
}

impl Twist for Rewinds {
    fn state(&self, inner: &Inner, sequence: SequenceId) -> Result<SequenceState> {
        let mut state = inner.session.state(sequence)?;
        state.position -= self.beyond.get(&sequence).copied().unwrap_or(0);
        Ok(state)
    }
    fn rewind(&mut self, inner: &mut Inner, sequence: SequenceId, position: usize) -> Result<()> {
        let held = inner.session.state(sequence)?.position;
        if position > held {
            return inner.session.rewind(sequence, position);
        }
        let kept = (self.keeps)(position, held);
        inner.session.rewind(sequence, kept)?;
        self.beyond.insert(sequence, kept - position);
        Ok(())
    }
}

/// Remembers another token after it was rewound for the second time.
#[derive(Default)]
struct RewindsOnce(BTreeSet<SequenceId>);

impl Twist for RewindsOnce {
    fn rewind(&mut self, inner: &mut Inner, sequence: SequenceId, position: usize) -> Result<()> {
        inner.session.rewind(sequence, position)?;
        if !self.0.insert(sequence) {
            let held = text(&mut *inner.session, sequence);
            rewrite(&mut *inner.session, sequence, &misremembered(held));
        }
        Ok(())
    }
}

/// How many positions the rings of these mutants have.
const RING: usize = 64;

/// `tokens` as a ring of [`RING`] positions has them after `held` were written: overwritten positions hold
/// other tokens.
fn overwritten(mut tokens: Vec<TokenId>, held: usize) -> Vec<TokenId> {
    let lost = held.saturating_sub(RING).min(tokens.len());
    tokens[..lost].iter_mut().for_each(|token| *token = (*token + 1) % 64);
    tokens
}

/// Goes back in a ring as if nothing had been overwritten.
struct RewindsWindow;

impl Twist for RewindsWindow {
    fn rewind(&mut self, inner: &mut Inner, sequence: SequenceId, position: usize) -> Result<()> {
        let held = text(&mut *inner.session, sequence);
        inner.session.rewind(sequence, position)?;
        if held.len() > RING {
            rewrite(&mut *inner.session, sequence, &overwritten(held[..position].to_vec(), held.len()));
        }
        Ok(())
    }
}

/// A fork has what stands behind the ring's seam alone.
struct ForkLosesWrapped;

impl Twist for ForkLosesWrapped {
    fn fork(&mut self, inner: &mut Inner, sequence: SequenceId) -> Result<SequenceId> {
        let fork = inner.session.fork(sequence)?;
        let held = text(&mut *inner.session, fork);
        if held.len() > RING {
            let length = held.len();
            rewrite(&mut *inner.session, fork, &overwritten(held, length));
        }
        Ok(fork)
    }
}

/// A snapshot has what stands behind the ring's seam alone.
struct RestoreLosesWrapped;

impl Twist for RestoreLosesWrapped {
    fn restore(&mut self, inner: &mut Inner, snapshot: &Snapshot) -> Result<SequenceId> {
        let sequence = inner.session.restore(snapshot)?;
        let held = tokens_of(snapshot);
        if held.len() > RING {
            let length = held.len();
            rewrite(&mut *inner.session, sequence, &overwritten(held, length));
        }
        Ok(sequence)
    }
}

/// Keeps what no position sees any more.
#[derive(Default)]
struct WindowsGrow {
    tokens: u64,
}

impl Twist for WindowsGrow {
    fn step(&mut self, inner: &mut Inner, rows: &[Row<'_>], control: &Control<'_>) -> Results {
        self.tokens += rows.iter().map(|row| row.tokens.len() as u64).sum::<u64>();
        inner.step(rows, control)
    }
    fn stats(&self, inner: &Inner) -> SessionStats {
        let mut stats = inner.session.stats();
        stats.kv_bytes += self.tokens;
        stats
    }
}

struct RewindsForward;

impl Twist for RewindsForward {
    fn rewind(&mut self, inner: &mut Inner, sequence: SequenceId, position: usize) -> Result<()> {
        let held = inner.session.state(sequence)?.position;
        inner.session.rewind(sequence, position.min(held))
    }
}

struct RewindComputes;

impl Twist for RewindComputes {
    fn rewind(&mut self, inner: &mut Inner, sequence: SequenceId, position: usize) -> Result<()> {
        let held = text(&mut *inner.session, sequence);
        inner.session.rewind(sequence, position)?;
        rewrite(&mut *inner.session, sequence, &held[..position]);
        Ok(())
    }
}

struct ForkForgets;

impl Twist for ForkForgets {
    fn fork(&mut self, inner: &mut Inner, sequence: SequenceId) -> Result<SequenceId> {
        let fork = inner.session.fork(sequence)?;
        let held = text(&mut *inner.session, fork);
        rewrite(&mut *inner.session, fork, &misremembered(held));
        Ok(fork)
    }
}

struct ForkComputes;

impl Twist for ForkComputes {
    fn fork(&mut self, inner: &mut Inner, sequence: SequenceId) -> Result<SequenceId> {
        let held = text(&mut *inner.session, sequence);
        recompute(inner, &held)
    }
}

/// The fork is fed the source's tokens instead of its own, as if they shared a cache.
#[derive(Default)]
struct ForkShares {
    source_of: BTreeMap<SequenceId, SequenceId>,
}

impl Twist for ForkShares {
    fn step(&mut self, inner: &mut Inner, rows: &[Row<'_>], control: &Control<'_>) -> Results {
        let results = inner.step(rows, control)?;
        for (&fork, &source) in &self.source_of {
            let length = text(&mut *inner.session, fork).len();
            let mut shared = text(&mut *inner.session, source);
            let own = text(&mut *inner.session, fork);
            shared.extend(own.iter().skip(shared.len()));
            shared.truncate(length);
            rewrite(&mut *inner.session, fork, &shared);
        }
        Ok(results)
    }
    fn close(&mut self, inner: &mut Inner, sequence: SequenceId) -> Result<()> {
        self.source_of.retain(|fork, source| *fork != sequence && *source != sequence);
        inner.session.close(sequence)
    }
    fn fork(&mut self, inner: &mut Inner, sequence: SequenceId) -> Result<SequenceId> {
        let fork = inner.session.fork(sequence)?;
        self.source_of.insert(fork, sequence);
        Ok(fork)
    }
}

/// Going back on a source spoils what its forks hold beyond.
#[derive(Default)]
struct UnforksOnRewind {
    source_of: BTreeMap<SequenceId, SequenceId>,
}

impl Twist for UnforksOnRewind {
    fn fork(&mut self, inner: &mut Inner, sequence: SequenceId) -> Result<SequenceId> {
        let fork = inner.session.fork(sequence)?;
        self.source_of.insert(fork, sequence);
        Ok(fork)
    }
    fn rewind(&mut self, inner: &mut Inner, sequence: SequenceId, position: usize) -> Result<()> {
        inner.session.rewind(sequence, position)?;
        for fork in self.source_of.iter().filter(|(_, source)| **source == sequence).map(|(fork, _)| *fork) {
            if inner.session.state(fork).is_ok_and(|state| state.position > position) {
                let held = text(&mut *inner.session, fork);
                rewrite(&mut *inner.session, fork, &misremembered(held));
            }
        }
        Ok(())
    }
}

/// There is one place more than it says, and forks take it.
#[derive(Default)]
pub(crate) struct ForksBeyond {
    open: usize,
}

impl Twist for ForksBeyond {
    fn open(&mut self, inner: &mut Inner) -> Result<SequenceId> {
        if self.open + 1 >= inner.session.capabilities().sequences {
            return Err(Error::new(ErrorKind::CapacityExceeded, "open sequence", "all places are taken"));
        }
        let sequence = inner.session.open()?;
        self.open += 1;
        Ok(sequence)
    }
    fn close(&mut self, inner: &mut Inner, sequence: SequenceId) -> Result<()> {
        inner.session.close(sequence)?;
        self.open -= 1;
        Ok(())
    }
    fn fork(&mut self, inner: &mut Inner, sequence: SequenceId) -> Result<SequenceId> {
        let fork = inner.session.fork(sequence)?;
        self.open += 1;
        Ok(fork)
    }
}
/// After a fault it continues with the state that it assumes.
#[derive(Default)]
struct ForgetsPoison {
    instead: BTreeMap<SequenceId, SequenceId>,
}

impl ForgetsPoison {
    fn real(&self, sequence: SequenceId) -> SequenceId {
        self.instead.get(&sequence).copied().unwrap_or(sequence)
    }
}

impl Twist for ForgetsPoison {
    fn state(&self, inner: &Inner, sequence: SequenceId) -> Result<SequenceState> {
        inner.session.state(self.real(sequence))
    }
    fn close(&mut self, inner: &mut Inner, sequence: SequenceId) -> Result<()> {
        inner.session.close(self.real(sequence))
    }
    fn step(&mut self, inner: &mut Inner, rows: &[Row<'_>], control: &Control<'_>) -> Results {
        let real: Vec<_> =
            rows.iter().map(|row| Row::new(self.real(row.sequence), row.tokens, row.want)).collect();
        let before: Vec<_> = real.iter().map(|row| text(&mut *inner.session, row.sequence)).collect();
        let results = inner.step(&real, control)?;
        for ((result, row), held) in results.iter().zip(rows).zip(before) {
            if result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Device) {
                inner.session.close(self.real(row.sequence))?;
                self.instead.insert(row.sequence, recompute(inner, &held)?);
            }
        }
        Ok(results)
    }
}
