//! Mutants whose sequences and forks hold something else than they should.

use std::collections::{BTreeMap, BTreeSet};

use mlxcel_core::{Control, Error, ErrorKind, Result, Row, SequenceId, SequenceState, SessionStats, TokenId};

use crate::mutants::Mutants;
use crate::mutants::twist::{Closing, Forking, Inner, Results, Rewinding, Twist};

pub(crate) const TWISTS: Mutants<fn() -> Box<dyn Twist>> = &[
    ("rewinds_in_name_only", || Box::new(Rewinds::new(|_, held| held))),
    ("rewinds_one_short", || Box::new(Rewinds::new(|to, held| (to + 1).min(held)))),
    ("rewinds_well_once", || Box::new(RewindsOnce::default())),
    ("windows_grow", || Box::new(WindowsGrow::default())),
    ("fork_shares_state", || Box::new(ForkShares::default())),
    ("unforks_on_rewind", || Box::new(UnforksOnRewind::default())),
    ("forgets_poison", || Box::new(ForgetsPoison::default())),
];

pub(crate) const CLOSES: Mutants<Closing> = &[
    // Closing a sequence spoils the cache of the others.
    ("close_harms_a_neighbour", |inner, sequence| {
        inner.session.close(sequence)?;
        for other in (0..sequence.number() + 16).map(SequenceId::new) {
            if inner.session.state(other).is_ok() {
                inner.misremember(other);
            }
        }
        Ok(())
    }),
];

pub(crate) const REWINDS: Mutants<Rewinding> = &[
    // Goes back in a ring as if nothing had been overwritten.
    ("rewinds_a_window", |inner, sequence, position| {
        let held = inner.text(sequence);
        inner.session.rewind(sequence, position)?;
        if held.len() > RING {
            inner.rewrite(sequence, &overwritten(held[..position].to_vec(), held.len()));
        }
        Ok(())
    }),
    ("rewinds_forward", |inner, sequence, position| {
        let held = inner.session.state(sequence)?.position;
        inner.session.rewind(sequence, position.min(held))
    }),
    ("rewind_computes_again", |inner, sequence, position| {
        let held = inner.text(sequence);
        inner.session.rewind(sequence, position)?;
        inner.rewrite(sequence, &held[..position]);
        Ok(())
    }),
];

pub(crate) const FORKS: Mutants<Forking> = &[
    // A fork has what stands behind the ring's seam alone.
    ("fork_loses_wrapped_positions", |inner, sequence| {
        let fork = inner.session.fork(sequence)?;
        let held = inner.text(fork);
        overwrite_wrapped(inner, fork, held);
        Ok(fork)
    }),
    ("fork_forgets_a_token", |inner, sequence| {
        let fork = inner.session.fork(sequence)?;
        inner.misremember(fork);
        Ok(fork)
    }),
    ("fork_computes_again", |inner, sequence| {
        let held = inner.text(sequence);
        inner.recompute(&held)
    }),
];

/// `tokens` with another one at the end.
pub(super) fn misremembered(mut tokens: Vec<TokenId>) -> Vec<TokenId> {
    if let Some(last) = tokens.last_mut() {
        *last = (*last + 1) % 64;
    }
    tokens
}

impl Inner {
    /// Makes a sequence hold another last token than it was fed.
    fn misremember(&mut self, sequence: SequenceId) {
        let held = self.text(sequence);
        self.rewrite(sequence, &misremembered(held));
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
            inner.misremember(sequence);
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

/// Makes `sequence`, which holds these tokens, hold them as a ring has them that they wrap around in.
pub(super) fn overwrite_wrapped(inner: &mut Inner, sequence: SequenceId, held: Vec<TokenId>) {
    let length = held.len();
    if length > RING {
        inner.rewrite(sequence, &overwritten(held, length));
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

/// The fork is fed the source's tokens instead of its own, as if they shared a cache.
#[derive(Default)]
struct ForkShares {
    source_of: BTreeMap<SequenceId, SequenceId>,
}

impl Twist for ForkShares {
    fn step(&mut self, inner: &mut Inner, rows: &[Row<'_>], control: &Control<'_>) -> Results {
        let results = inner.step(rows, control)?;
        for (&fork, &source) in &self.source_of {
            let (own, mut shared) = (inner.text(fork), inner.text(source));
            shared.extend(own.iter().skip(shared.len()));
            shared.truncate(own.len());
            inner.rewrite(fork, &shared);
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
                inner.misremember(fork);
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
        let before: Vec<_> = real.iter().map(|row| inner.text(row.sequence)).collect();
        let results = inner.step(&real, control)?;
        for ((result, row), held) in results.iter().zip(rows).zip(before) {
            if result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Device) {
                inner.session.close(self.real(row.sequence))?;
                self.instead.insert(row.sequence, inner.recompute(&held)?);
            }
        }
        Ok(results)
    }
}
