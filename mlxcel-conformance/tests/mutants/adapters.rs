//! Mutants with defects of adapters.

use mlxcel_core::reference::ReferenceBackend;
use mlxcel_core::{
    AdapterLimits, Control, InferenceSessionExt, LoadOptions, Result, Row, SequenceId, SequenceOptions,
    Snapshot,
};

use crate::mutants::Mutants;
use crate::mutants::twist::{Broken, Forking, Inner, Twist, tokens_of};

pub(crate) const TWISTS: Mutants<fn() -> Box<dyn Twist>> = &[
    ("ignores_adapters", || Box::new(IgnoresAdapters)),
    ("adapters_leak", || Box::new(Leaks)),
    ("one_adapter_for_all", || Box::new(OneForAll(None))),
    ("restores_with_any_adapter", || Box::new(RestoresWithAny)),
    ("snapshots_forget_their_adapter", || Box::new(SnapshotsForgetAdapters)),
];

pub(crate) const FORKS: Mutants<Forking> = &[("forks_lose_their_adapter", |inner, sequence| {
    let snapshot = inner.session.snapshot(sequence)?;
    if snapshot.identity().adapter.is_none() {
        return inner.session.fork(sequence);
    }
    inner.recompute(&tokens_of(&snapshot))
})];

pub(crate) const LOADS: Mutants<fn(&mut LoadOptions)> = &[
    ("ignores_load_adapters", |options| options.adapters = None),
    ("has_a_fixed_room_for_adapters", |options| options.adapters = Some(AdapterLimits::new(3, 4))),
];

pub(crate) const OTHERS: Mutants<fn(ReferenceBackend) -> Broken> = &[
    ("has_more_slots_than_it_claims", |reference| Broken {
        load: |options| options.adapters = options.adapters.map(|own| with_slots(own, 1)),
        claims: |claims| claims.adapters = claims.adapters.map(|own| with_slots(own, -1)),
        ..Broken::new(reference)
    }),
    ("stale_adapters", |reference| Broken { stale_adapters: true, ..Broken::new(reference) }),
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
        let mut identity = snapshot.identity().clone();
        identity.adapter = None;
        Ok(Snapshot::new(identity, snapshot.position(), snapshot.payload()))
    }
}
