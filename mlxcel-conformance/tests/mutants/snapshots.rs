//! Mutants whose snapshots and restored sequences hold something else than they should.

use std::collections::BTreeMap;

use mlxcel_core::{Error, ErrorKind, Result, SequenceId, Snapshot, StateIdentity, TokenId};

use crate::mutants::Mutants;
use crate::mutants::state::{misremembered, overwrite_wrapped};
use crate::mutants::twist::{Inner, Restoring, Twist, tokens_of};

pub(crate) const TWISTS: Mutants<fn() -> Box<dyn Twist>> = &[
    ("snapshot_is_an_alias", || Box::new(SnapshotAlias::default())),
    ("snapshot_is_a_handle", || Box::new(SnapshotHandle::default())),
];

pub(crate) const RESTORES: Mutants<Restoring> = &[
    ("snapshot_forgets_a_token", |inner, snapshot| {
        let sequence = inner.session.restore(snapshot)?;
        inner.rewrite(sequence, &misremembered(tokens_of(snapshot)));
        Ok(sequence)
    }),
    // What stands behind the ring's seam alone is restored.
    ("snapshot_loses_wrapped_positions", |inner, snapshot| {
        let sequence = inner.session.restore(snapshot)?;
        overwrite_wrapped(inner, sequence, tokens_of(snapshot));
        Ok(sequence)
    }),
    ("restores_oversized_snapshots", |inner, snapshot| {
        let capacity = inner.session.capabilities().context;
        if snapshot.position() <= capacity {
            return inner.session.restore(snapshot);
        }
        inner.recompute(&tokens_of(snapshot)[..capacity])
    }),
    ("restores_corrupt_snapshots", |inner, snapshot| match inner.session.restore(snapshot) {
        Err(error) if error.kind() == ErrorKind::Corrupt => inner.session.open(),
        result => result,
    }),
    ("restore_computes_again", |inner, snapshot| inner.recompute(&tokens_of(snapshot))),
];

pub(crate) const ADOPTIONS: Mutants<Adoption> = &[
    // Takes the payload of any engine and model for its own.
    ("restores_anything", |found, own| found.clone_from(own)),
    ("identity_forgets_the_adapter", |found, own| found.adapter.clone_from(&own.adapter)),
    ("identity_forgets_the_precision", |found, own| found.precision = own.precision),
];

/// A snapshot shows what its sequence came to be.
#[derive(Default)]
struct SnapshotAlias {
    taken: Vec<(Snapshot, SequenceId)>,
    last: BTreeMap<SequenceId, Vec<TokenId>>,
}

impl Twist for SnapshotAlias {
    fn close(&mut self, inner: &mut Inner, sequence: SequenceId) -> Result<()> {
        self.last.insert(sequence, inner.text(sequence));
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
            inner.rewrite(restored, &last[last.len() - snapshot.position()..]);
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

/// Changes the identity of a snapshot to the session's own, in whole or in part.
type Adoption = fn(found: &mut StateIdentity, own: &StateIdentity);

/// Restores a snapshot as one of another identity.
pub(crate) struct Adopt(pub(crate) Adoption);

impl Twist for Adopt {
    fn restore(&mut self, inner: &mut Inner, snapshot: &Snapshot) -> Result<SequenceId> {
        let sequence = inner.scratch.open()?;
        let own = inner.scratch.snapshot(sequence)?;
        inner.scratch.close(sequence)?;
        let mut identity = snapshot.identity().clone();
        (self.0)(&mut identity, own.identity());
        inner.session.restore(&Snapshot::new(identity, snapshot.position(), snapshot.payload()))
    }
}
