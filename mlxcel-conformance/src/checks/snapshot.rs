//! Snapshots. Needs [`Capabilities::snapshot`](mlxcel_core::Capabilities::snapshot).

use mlxcel_core::{ErrorKind, Precision, SessionOptions, Snapshot, StateIdentity};

use crate::failure::{Outcome, ensure, refused};
use crate::outlook::{extend, stands_at};
use crate::subject::Subject;
use crate::walk::{Walk, computes_nothing};

/// A restored sequence continues as the original, also via bytes and from an empty sequence.
///
/// Kills: `snapshot_forgets_a_token`, `snapshot_is_an_alias`, `snapshot_loses_wrapped_positions`.
pub fn snapshot_round_trip(subject: &Subject<'_>) -> Outcome {
    let mut session = subject.session()?;
    for length in [0, 1, 9, subject.long()?] {
        let text = subject.tokens(length, length)?;
        let mut walk = Walk::open(&mut *session, Vec::new())?;
        if length > 0 {
            extend(&mut *session, walk.sequence, &text)?;
        }
        let snapshot = session.snapshot(walk.sequence)?;
        ensure!(
            snapshot.position() == length,
            "a snapshot of {length} tokens has position {}",
            snapshot.position()
        );
        // Later changes to the sequence do not affect the snapshot.
        walk.held.clone_from(&text);
        walk.pending = subject.tokens(2, 3)?;
        walk.run(subject, &mut *session, 2, "after a snapshot")?;
        session.close(walk.sequence)?;
        let bytes = snapshot.to_bytes();
        let snapshot = Snapshot::from_bytes(&bytes)?;
        for time in 1..=2 {
            let sequence = session.restore(&snapshot)?;
            stands_at(&*session, sequence, length)?;
            let mut walk = Walk { sequence, held: text.clone(), pending: subject.tokens(time, 1)? };
            walk.run(subject, &mut *session, 2, format_args!("restored, {length} tokens, time {time}"))?;
            session.close(sequence)?;
        }
    }
    Ok(())
}

/// A snapshot restores into another session of the model, and of the model loaded again, after its own
/// session was dropped.
///
/// Kills: `snapshot_is_a_handle`.
pub fn snapshot_outlives_its_session(subject: &Subject<'_>) -> Outcome {
    let mut session = subject.session()?;
    let mut walk = Walk::open(&mut *session, subject.tokens(3, 12)?)?;
    walk.run(subject, &mut *session, 2, "before")?;
    let snapshot = session.snapshot(walk.sequence)?;
    drop(session);
    let again = subject.backend().load(subject.source(), subject.load_options())?;
    for (model, what) in [(subject.model()?, "another session"), (again, "the model loaded again")] {
        let mut session = model.open_session(&SessionOptions::default())?;
        let sequence = session.restore(&snapshot)?;
        let mut walk = Walk { sequence, held: walk.held.clone(), pending: walk.pending.clone() };
        walk.run(subject, &mut *session, 2, what)?;
    }
    Ok(())
}

/// Makes an identity another one.
type Change = fn(&mut StateIdentity);

/// A snapshot of another engine, model, precision or adapter, or longer than the session's capacity, is
/// rejected.
///
/// Kills: `restores_anything`, `identity_forgets_the_adapter`, `identity_forgets_the_precision`,
/// `restores_oversized_snapshots`.
pub fn snapshot_rejects_foreign(subject: &Subject<'_>) -> Outcome {
    let mut session = subject.session()?;
    let sequence = session.open()?;
    extend(&mut *session, sequence, &subject.tokens(4, 10)?)?;
    let own = session.snapshot(sequence)?;
    session.close(sequence)?;
    let identity = StateIdentity::of(subject.model()?.info());
    ensure!(*own.identity() == identity, "a snapshot belongs to `{}`, not to `{identity}`", own.identity());
    let invalid = ErrorKind::InvalidInput;
    let changes: [(&str, Change); 5] = [
        ("engine", |other| other.engine = "no-such-engine".to_owned()),
        ("format of states", |other| other.state.push_str("/no-such-version")),
        ("model", |other| other.model = "no-such-model".to_owned()),
        ("precision", |other| {
            let is_exact = other.precision == Precision::Exact;
            other.precision = if is_exact { Precision::Native } else { Precision::Exact };
        }),
        ("adapter", |other| other.adapter = Some("no-such-adapter".to_owned())),
    ];
    for (what, change) in changes {
        let mut other = identity.clone();
        change(&mut other);
        let foreign = Snapshot::new(other, own.position(), own.payload());
        refused(session.restore(&foreign), invalid, format_args!("a snapshot of another {what}"))?;
    }
    let mut small = subject.model()?.open_session(&SessionOptions::default().with_capacity(9))?;
    refused(small.restore(&own), invalid, "a snapshot of 10 tokens in a session for 9")?;
    small.open()?;
    // None of them opened a sequence.
    for _ in 0..session.capabilities().sequences {
        session.open()?;
    }
    refused(session.restore(&own), ErrorKind::CapacityExceeded, "restoring with all slots taken")
}

/// A snapshot of another model of the same engine is rejected. Needs another model.
///
/// Kills: `restores_anything`.
pub fn snapshot_rejects_other_models(subject: &Subject<'_>) -> Outcome {
    let Some(other) = subject.other_model()? else { return Ok(()) };
    let mut session = subject.session()?;
    let sequence = session.open()?;
    extend(&mut *session, sequence, &subject.tokens(5, 3)?)?;
    let snapshot = session.snapshot(sequence)?;
    ensure!(
        other.info().fingerprint != snapshot.identity().model,
        "two models have the fingerprint `{}`",
        snapshot.identity().model
    );
    let mut session = other.open_session(&SessionOptions::default())?;
    refused(session.restore(&snapshot), ErrorKind::InvalidInput, "a snapshot of the first model")
}

/// A snapshot with a truncated or extended payload, or with a wrong position, is corrupt.
///
/// Kills: `restores_corrupt_snapshots`.
pub fn snapshot_rejects_corruption(subject: &Subject<'_>) -> Outcome {
    let mut session = subject.session()?;
    let sequence = session.open()?;
    extend(&mut *session, sequence, &subject.tokens(6, 10)?)?;
    let own = session.snapshot(sequence)?;
    session.close(sequence)?;
    let payload = own.payload();
    let cut = &payload[..payload.len().saturating_sub(1)];
    let grown = [payload, &[0]].concat();
    for (position, payload, what) in [
        (10, cut, "a payload truncated by a byte"),
        (10, &grown[..], "a payload extended by a byte"),
        (10, &[], "no payload"),
        (9, payload, "a payload of 10 tokens for 9"),
        (11, payload, "a payload of 10 tokens for 11"),
        (0, payload, "a payload of 10 tokens for none"),
    ] {
        let damaged = Snapshot::new(own.identity().clone(), position, payload);
        refused(session.restore(&damaged), ErrorKind::Corrupt, what)?;
    }
    for _ in 0..session.capabilities().sequences {
        session.open()?;
    }
    Ok(())
}

/// A snapshot of a full sequence has at most the claimed number of bytes, so a reader knows how much to read.
///
/// Kills: `understates_snapshot_bytes`, `overstates_snapshot_bytes`.
pub fn snapshot_size_is_bounded(subject: &Subject<'_>) -> Outcome {
    let mut session = subject.session()?;
    let (context, most) = (session.capabilities().context, session.capabilities().snapshot_bytes);
    let Some(most) = most else { return Ok(()) };
    let sequence = session.open()?;
    extend(&mut *session, sequence, &subject.tokens(6, context)?)?;
    let bytes = session.snapshot(sequence)?.payload().len() as u64;
    ensure!(bytes <= most, "a snapshot of a full sequence has {bytes} bytes, and {most} are claimed");
    // A claim that is far too large is useless.
    ensure!(most / 2 <= bytes, "{most} bytes are claimed for a snapshot, and a full sequence has {bytes}");
    Ok(())
}

/// Taking a snapshot and restoring it compute nothing.
///
/// Kills: `restore_computes_again`.
pub fn snapshot_computes_nothing(subject: &Subject<'_>) -> Outcome {
    computes_nothing(subject, "snapshot and restore", |session, sequence| {
        let snapshot = session.snapshot(sequence)?;
        session.close(sequence)?;
        session.restore(&snapshot).map(drop)
    })
}
