//! Bytes that say they are a snapshot, restored by the engines whose it is.

use std::cell::OnceCell;
use std::sync::Arc;

use mlxcel_core::reference::ReferenceBackend;
use mlxcel_core::{
    Backend, Control, InferenceSession, InferenceSessionExt, LoadOptions, Model, Result, Row, SessionOptions,
    Snapshot,
};
use mlxcel_portable::PortableBackend;

use super::place::fixture;
use crate::outcome::Outcome;
use crate::target::{Format, Target};

pub(super) const TARGET: Target = Target {
    name: "snapshot",
    about: "bytes of a snapshot: read, restored by the reference and the portable engine, and continued",
    format: Format::Snapshot,
    run,
    memory: 128,
    seconds: 10,
    longest: 1 << 20,
    seeds,
    ..Target::USUAL
};

/// Models whose states are of each kind: growing keys, windows, recurrences.
const MODELS: [&str; 4] = ["llama", "gemma2", "mamba2", "deepseek_v3"];

thread_local! {
    static LOADED: OnceCell<Vec<Arc<dyn Model>>> = const { OnceCell::new() };
}

fn models<T>(with: impl FnOnce(&[Arc<dyn Model>]) -> T) -> T {
    LOADED.with(|loaded| {
        with(loaded.get_or_init(|| {
            let reference = ReferenceBackend::new();
            let options = LoadOptions::default().with_capacity(32).with_sequences(2).with_threads(1);
            let portable =
                MODELS.iter().map(|name| PortableBackend::new().load(&fixture(name).into(), &options));
            let own = [reference.model(), reference.with_window(4).model()];
            own.into_iter().chain(portable).flatten().collect()
        }))
    })
}

fn run(input: &[u8]) -> Outcome {
    Outcome::of(Snapshot::from_bytes(input).map(|snapshot| resumed(input, &snapshot)))
}

fn resumed(input: &[u8], snapshot: &Snapshot) -> Outcome {
    assert_eq!(snapshot.to_bytes(), input);
    models(|models| {
        let outcomes = models.iter().map(|model| {
            let session = model.open_session(&SessionOptions::default());
            Outcome::of(session.and_then(|mut session| resume(&mut *session, snapshot)))
        });
        outcomes.reduce(Outcome::then).unwrap_or_default()
    })
}

fn resume(session: &mut dyn InferenceSession, snapshot: &Snapshot) -> Result<Outcome> {
    let sequence = session.restore(snapshot)?;
    let state = session.state(sequence)?;
    assert!(state.position == snapshot.position() && state.position <= state.capacity && !state.poisoned);
    let result = session.run_row(Row::logits(sequence, &[1]), &Control::default());
    session.close(sequence)?;
    result.map(|_| Outcome::new("restored"))
}

fn seeds() -> Vec<Vec<u8>> {
    let taken = |model: &Arc<dyn Model>| -> Result<Vec<u8>> {
        let mut session = model.open_session(&SessionOptions::default())?;
        let sequence = session.open()?;
        session.run_row(Row::extend(sequence, &[1, 2, 3, 4, 5]), &Control::default())?;
        Ok(session.snapshot(sequence)?.to_bytes())
    };
    models(|models| models.iter().flat_map(taken).collect())
}
