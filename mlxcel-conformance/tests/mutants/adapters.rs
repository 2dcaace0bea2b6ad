//! Mutants with defects of adapters.

use mlxcel_core::{
    AdapterLimits, Control, InferenceSessionExt, Result, Row, SequenceId, SequenceOptions, Snapshot,
    StateIdentity,
};

use crate::mutants::Break;
use crate::mutants::twist::{Broken, Inner, Twist, tokens_of};

pub(crate) const ALL: &[(&str, Break)] = &[
    ("ignores_adapters", |reference| Broken::new(reference).with_twist(|| Box::new(IgnoresAdapters))),
    ("ignores_load_adapters", |reference| {
        Broken::new(reference).with_load(|options| options.adapters = None)
    }),
    ("has_a_fixed_room_for_adapters", |reference| {
        Broken::new(reference).with_load(|options| options.adapters = Some(AdapterLimits::new(3, 4)))
    }),
    ("adapters_leak", |reference| Broken::new(reference).with_twist(|| Box::new(Leaks))),
    ("one_adapter_for_all", |reference| Broken::new(reference).with_twist(|| Box::new(OneForAll(None)))),
    ("forks_lose_their_adapter", |reference| {
        Broken::new(reference).with_twist(|| Box::new(ForksLoseAdapters))
    }),
    ("restores_with_any_adapter", |reference| {
        Broken::new(reference).with_twist(|| Box::new(RestoresWithAny))
    }),
    ("snapshots_forget_their_adapter", |reference| {
        Broken::new(reference).with_twist(|| Box::new(SnapshotsForgetAdapters))
    }),
    ("has_more_slots_than_it_claims", |reference| {
        Broken::new(reference)
            .with_load(|options| options.adapters = options.adapters.map(|own| with_slots(own, 1)))
            .with_claims(|claims| claims.adapters = claims.adapters.map(|own| with_slots(own, -1)))
    }),
    ("stale_adapters", |reference| Broken::new(reference).with_stale_adapters()),
];

/// Room with more or fewer slots.
fn with_slots(room: AdapterLimits, more: isize) -> AdapterLimits {
    AdapterLimits::new(room.slots.saturating_add_signed(more), room.rank)
}

/// Opens a sequence without the adapter that it is asked for.
struct IgnoresAdapters;

impl Twist for IgnoresAdapters {
    fn open_with(&mut self, inner: &mut Inner, _: &SequenceOptions) -> Result<SequenceId> {
        inner.session.open()
    }
}

/// Computes sequences without an adapter with the last one of any session.
struct Leaks;

impl Twist for Leaks {
    fn open_with(&mut self, inner: &mut Inner, options: &SequenceOptions) -> Result<SequenceId> {
        inner.shared.options.lock().unwrap().clone_from(options);
        inner.session.open_with(options)
    }
    fn open(&mut self, inner: &mut Inner) -> Result<SequenceId> {
        inner.session.open_with(&inner.shared.options.lock().unwrap())
    }
}

/// Computes all sequences of a session with the adapter of its first.
struct OneForAll(Option<SequenceOptions>);

impl Twist for OneForAll {
    fn open_with(&mut self, inner: &mut Inner, options: &SequenceOptions) -> Result<SequenceId> {
        inner.session.open_with(self.0.get_or_insert_with(|| options.clone()))
    }
}

struct ForksLoseAdapters;

impl Twist for ForksLoseAdapters {
    fn fork(&mut self, inner: &mut Inner, sequence: SequenceId) -> Result<SequenceId> {
        let snapshot = inner.session.snapshot(sequence)?;
        if snapshot.identity().adapter.is_none() {
            return inner.session.fork(sequence);
        }
        let fork = inner.session.open()?;
        inner.session.run_row(Row::extend(fork, &tokens_of(&snapshot)), &Control::default())?;
        Ok(fork)
    }
}

/// Takes a snapshot of any adapter for one of that it is to restore it with.
struct RestoresWithAny;

impl Twist for RestoresWithAny {
    fn restore_with(
        &mut self,
        inner: &mut Inner,
        snapshot: &Snapshot,
        options: &SequenceOptions,
    ) -> Result<SequenceId> {
        let sequence = inner.session.open_with(options)?;
        inner.session.run_row(Row::extend(sequence, &tokens_of(snapshot)), &Control::default())?;
        Ok(sequence)
    }
}

struct SnapshotsForgetAdapters;

impl Twist for SnapshotsForgetAdapters {
    fn snapshot(&mut self, inner: &mut Inner, sequence: SequenceId) -> Result<Snapshot> {
        let snapshot = inner.session.snapshot(sequence)?;
        let mut identity: StateIdentity = snapshot.identity().clone();
        identity.adapter = None;
        Ok(Snapshot::new(identity, snapshot.position(), snapshot.payload()))
    }
}
