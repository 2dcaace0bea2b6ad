//! Forks. Needs [`Capabilities::fork`](mlxcel_core::Capabilities::fork).

use mlxcel_core::{ErrorKind, InferenceSession};

use crate::failure::{Outcome, ensure, refused};
use crate::outlook::{extend, stands_at};
use crate::subject::Subject;
use crate::walk::{Walk, computes_nothing, step_together};

/// A walk over a text, and a fork of it with other pending tokens.
fn forked(subject: &Subject<'_>, session: &mut dyn InferenceSession, length: usize) -> Outcome<(Walk, Walk)> {
    let text = subject.tokens(length, length)?;
    let mut source = Walk::open(session, Vec::new())?;
    if length > 0 {
        extend(session, source.sequence, &text)?;
    }
    let sequence = session.fork(source.sequence)?;
    ensure!(sequence != source.sequence, "a fork has the id of its source");
    stands_at(session, sequence, length)?;
    stands_at(session, source.sequence, length)?;
    source.pending = subject.tokens(1, 1)?;
    let fork = Walk { sequence, held: text.clone(), pending: subject.tokens(2, 2)? };
    source.held = text;
    Ok((source, fork))
}

/// A fork continues as its source would, also from an empty sequence. Needs two sequences.
///
/// Kills: `fork_forgets_a_token`, `fork_loses_wrapped_positions`.
pub fn fork_continues(subject: &Subject<'_>) -> Outcome {
    let mut session = subject.session()?;
    for length in [0, 1, 9, subject.long()?] {
        let (mut source, mut fork) = forked(subject, &mut *session, length)?;
        fork.run(subject, &mut *session, 2, format_args!("the fork of {length} tokens"))?;
        source.run(subject, &mut *session, 2, format_args!("the source of {length} tokens"))?;
        session.close(source.sequence)?;
        fork.run(subject, &mut *session, 1, "the fork after its source was closed")?;
        session.close(fork.sequence)?;
    }
    Ok(())
}

/// Source and fork are independent: run in turns, in one step, and when one rewinds. Needs two sequences.
///
/// Kills: `fork_shares_state`.
pub fn fork_is_independent(subject: &Subject<'_>) -> Outcome {
    let mut session = subject.session()?;
    let (mut source, mut fork) = forked(subject, &mut *session, 10)?;
    source.run(subject, &mut *session, 1, "the source first")?;
    fork.run(subject, &mut *session, 1, "the fork second")?;
    stands_at(&*session, source.sequence, source.held.len())?;
    stands_at(&*session, fork.sequence, fork.held.len())?;
    let mut both = [source, fork];
    step_together(subject, &mut *session, &mut both, "together")?;
    let [mut source, mut fork] = both;
    if session.capabilities().rewind {
        session.rewind(source.sequence, 3)?;
        source.held.truncate(3);
        source.run(subject, &mut *session, 2, "the source after its rewind")?;
    }
    fork.run(subject, &mut *session, 2, "the fork at the end")
}

/// A fork counts as a sequence, and is rejected if the limit is reached. Needs two sequences.
///
/// Kills: `forks_beyond_the_limit`.
pub fn fork_takes_a_slot(subject: &Subject<'_>) -> Outcome {
    let mut session = subject.session()?;
    let mut walk = Walk::open(&mut *session, subject.tokens(0, 4)?)?;
    walk.run(subject, &mut *session, 1, "before")?;
    let mut last = walk.sequence;
    for _ in 1..session.capabilities().sequences {
        last = session.fork(walk.sequence)?;
    }
    refused(session.fork(walk.sequence), ErrorKind::CapacityExceeded, "a fork beyond the limit")?;
    walk.run(subject, &mut *session, 1, "after a fork beyond the limit")?;
    session.close(last)?;
    session.fork(walk.sequence).map(drop).map_err(Into::into)
}

/// A fork computes nothing. Needs two sequences.
///
/// Kills: `fork_computes_again`.
pub fn fork_computes_nothing(subject: &Subject<'_>) -> Outcome {
    computes_nothing(subject, "fork", |session, sequence| session.fork(sequence).map(drop))
}
