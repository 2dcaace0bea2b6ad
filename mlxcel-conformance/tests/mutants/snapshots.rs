//! Mutants whose snapshots and restored sequences hold something else than they should.

use std::collections::BTreeMap;

use mlxcel_core::{Error, ErrorKind, Result, SequenceId, Snapshot, StateIdentity, TokenId};

use crate::mutants::Mutants;
use crate::mutants::state::{misremembered, recompute};
use crate::mutants::twist::{Inner, Twist, rewrite, text, tokens_of};

pub(crate) const TWISTS: Mutants<fn() -> Box<dyn Twist>> = &[
    ("snapshot_forgets_a_token", || Box::new(RestoreForgets)),
    ("snapshot_is_an_alias", || Box::new(SnapshotAlias::default())),
    ("snapshot_is_a_handle", || Box::new(SnapshotHandle::default())),
    ("restores_anything", || Box::new(RestoresAnything)),
    ("identity_forgets_the_adapter", || {
        Box::new(ForgetsPart(|found, own| found.adapter.clone_from(&own.adapter)))
    }),
    ("identity_forgets_the_precision", || {
        Box::new(ForgetsPart(|found, own| found.precision = own.precision))
    }),
    ("restores_oversized_snapshots", || Box::new(RestoresTooLong)),
    ("restores_corrupt_snapshots", || Box::new(RestoresDamage)),
    ("restore_computes_again", || Box::new(RestoreComputes)),
];

struct RestoreForgets;

impl Twist for RestoreForgets {
    fn restore(&mut self, inner: &mut Inner, snapshot: &Snapshot) -> Result<SequenceId> {
        let sequence = inner.session.restore(snapshot)?;
        rewrite(&mut *inner.session, sequence, &misremembered(tokens_of(snapshot)));
        Ok(sequence)
    }
}

/// A snapshot shows what its sequence came to be.
#[derive(Default)]
struct SnapshotAlias {
    taken: Vec<(Snapshot, SequenceId)>,
    last: BTreeMap<SequenceId, Vec<TokenId>>,
}

impl Twist for SnapshotAlias {
    fn close(&mut self, inner: &mut Inner, sequence: SequenceId) -> Result<()> {
        self.last.insert(sequence, text(&mut *inner.session, sequence));
        inner.session.close(sequence)
    }
    fn snapshot(&mut self, inner: &mut Inner, sequence: SequenceId) -> Result<Snapshot> {
        let snapshot = inner.session.snapshot(sequence)?;
        self.taken.push((snapshot.clone(), sequence));
        Ok(snapshot)
    }
    fn restore(&mut self, inner: &mut Inner, snapshot: &Snapshot) -> Result<SequenceId> {
        let restored = inner.session.restore(snapshot)?;
        let taken = self.taken.iter().find(|(taken, _)| taken == snapshot);
        if let Some(last) = taken.and_then(|(_, sequence)| self.last.get(sequence)) {
            // A ring that went on turning.
            rewrite(&mut *inner.session, restored, &last[last.len() - snapshot.position()..]);
        }
        Ok(restored)
    }
}

/// A snapshot is a number that means something to its own session alone.
#[derive(Default)]
struct SnapshotHandle {
    kept: Vec<Snapshot>,
}

impl Twist for SnapshotHandle {
    fn snapshot(&mut self, inner: &mut Inner, sequence: SequenceId) -> Result<Snapshot> {
        let snapshot = inner.session.snapshot(sequence)?;
        let handle =
            Snapshot::new(snapshot.identity().clone(), snapshot.position(), self.kept.len().to_le_bytes());
        self.kept.push(snapshot);
        Ok(handle)
    }
    fn restore(&mut self, inner: &mut Inner, snapshot: &Snapshot) -> Result<SequenceId> {
        let handle = snapshot.payload().try_into().map(usize::from_le_bytes).unwrap_or(usize::MAX);
        match self.kept.get(handle) {
            Some(kept) => inner.session.restore(kept),
            None => Err(Error::new(ErrorKind::Corrupt, "restore", "there is no such snapshot")),
        }
    }
}

/// Takes the payload of any engine and model for its own.
struct RestoresAnything;

impl Twist for RestoresAnything {
    fn restore(&mut self, inner: &mut Inner, snapshot: &Snapshot) -> Result<SequenceId> {
        let sequence = inner.scratch.open()?;
        let own = inner.scratch.snapshot(sequence)?;
        inner.scratch.close(sequence)?;
        let adopted = Snapshot::new(own.identity().clone(), snapshot.position(), snapshot.payload());
        inner.session.restore(&adopted)
    }
}

/// Compares identities without one field, which it takes from its own.
struct ForgetsPart(fn(&mut StateIdentity, &StateIdentity));

impl Twist for ForgetsPart {
    fn restore(&mut self, inner: &mut Inner, snapshot: &Snapshot) -> Result<SequenceId> {
        let sequence = inner.scratch.open()?;
        let own = inner.scratch.snapshot(sequence)?;
        inner.scratch.close(sequence)?;
        let mut identity = snapshot.identity().clone();
        (self.0)(&mut identity, own.identity());
        inner.session.restore(&Snapshot::new(identity, snapshot.position(), snapshot.payload()))
    }
}

struct RestoresTooLong;

impl Twist for RestoresTooLong {
    fn restore(&mut self, inner: &mut Inner, snapshot: &Snapshot) -> Result<SequenceId> {
        let capacity = inner.session.capabilities().context;
        if snapshot.position() <= capacity {
            return inner.session.restore(snapshot);
        }
        recompute(inner, &tokens_of(snapshot)[..capacity])
    }
}

struct RestoresDamage;

impl Twist for RestoresDamage {
    fn restore(&mut self, inner: &mut Inner, snapshot: &Snapshot) -> Result<SequenceId> {
        match inner.session.restore(snapshot) {
            Err(error) if error.kind() == ErrorKind::Corrupt => inner.session.open(),
            result => result,
        }
    }
}

struct RestoreComputes;

impl Twist for RestoreComputes {
    fn restore(&mut self, inner: &mut Inner, snapshot: &Snapshot) -> Result<SequenceId> {
        recompute(inner, &tokens_of(snapshot))
    }
}
