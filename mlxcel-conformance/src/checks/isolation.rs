//! Isolation of sequences, sessions and threads.

use mlxcel_core::{ErrorKind, SequenceId};

use crate::failure::{Failure, Outcome, ensure, refused};
use crate::outlook::{extend, greedy, stands_at};
use crate::subject::Subject;
use crate::walk::Walk;

/// Interleaved sequences generate the same as each one alone, and closing one does not affect the others.
/// Needs two sequences.
///
/// Kills: `close_harms_a_neighbour`.
pub fn sequences_are_isolated(subject: &Subject<'_>) -> Outcome {
    let mut session = subject.session()?;
    // The same prefix, to detect caches that are looked up by text.
    let mut first = Walk::open(&mut *session, subject.tokens(0, 8)?)?;
    let mut second = Walk::open(&mut *session, subject.tokens(0, 11)?)?;
    for turn in 0..3 {
        first.run(subject, &mut *session, 1, format_args!("first, turn {turn}"))?;
        second.run(subject, &mut *session, 2, format_args!("second, turn {turn}"))?;
    }
    session.close(first.sequence)?;
    stands_at(&*session, second.sequence, second.held.len())?;
    second.run(subject, &mut *session, 2, "after another sequence was closed")?;
    let mut third = Walk::open(&mut *session, subject.tokens(1, 5)?)?;
    third.run(subject, &mut *session, 2, "in the slot of a closed one")?;
    second.run(subject, &mut *session, 1, "after the closed slot was reused")
}

/// Interleaved sessions of one model are isolated: sequences, limits and counters.
///
/// Kills: `sessions_are_one`.
pub fn sessions_are_isolated(subject: &Subject<'_>) -> Outcome {
    let mut first = subject.session()?;
    let mut second = subject.session()?;
    let limit = first.capabilities().sequences;
    let mut walk = Walk::open(&mut *first, subject.tokens(2, 7)?)?;
    for _ in 1..limit {
        first.open()?;
    }
    ensure!(second.stats().tokens == 0, "a session counts another's tokens");
    refused(
        second.state(walk.sequence),
        ErrorKind::NotFound,
        "a sequence of another session, with none open",
    )?;
    let mut own = Vec::new();
    for _ in 0..limit {
        own.push(second.open()?);
    }
    let Some(&last) = own.last() else { return Err(Failure::new("no sequence is open")) };
    let mut other = Walk { sequence: last, held: Vec::new(), pending: subject.tokens(3, 9)? };
    for turn in 0..3 {
        walk.run(subject, &mut *first, 1, format_args!("first session, turn {turn}"))?;
        other.run(subject, &mut *second, 2, format_args!("second session, turn {turn}"))?;
    }
    drop(second);
    walk.run(subject, &mut *first, 2, "after another session was dropped")
}

/// Sessions of one model run on several threads concurrently, and each generates the same as alone.
///
/// Kills: `serves_one_thread`.
pub fn threads_share_only_weights(subject: &Subject<'_>) -> Outcome {
    // Expected results are computed first, so that the threads only run the engine.
    for number in 0..3 {
        let mut session = subject.session()?;
        let mut walk = Walk::open(&mut *session, subject.tokens(number, 6 + number)?)?;
        walk.run(subject, &mut *session, 6, "alone")?;
    }
    let run = |number: usize| -> Outcome {
        let mut session = subject.session()?;
        let mut walk = Walk::open(&mut *session, subject.tokens(number, 6 + number)?)?;
        walk.run(subject, &mut *session, 6, format_args!("on thread {number} of 3"))
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3).map(|number| scope.spawn(move || run(number))).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| Failure::new("the engine panicked on one of three threads"))?
        })
    })
}

/// Ids belong to their session: an id that is closed or of another session is never taken for another
/// sequence.
///
/// Kills: `reuses_ids`, `keeps_closed_sequences`.
pub fn stale_ids_are_rejected(subject: &Subject<'_>) -> Outcome {
    let mut session = subject.session()?;
    let stale = session.open()?;
    extend(&mut *session, stale, &subject.tokens(4, 4)?)?;
    session.close(stale)?;
    let fresh = session.open()?;
    let gone = |id: SequenceId| format!("sequence {id}, which was closed before another was opened");
    refused(session.state(stale), ErrorKind::NotFound, gone(stale))?;
    refused(session.close(stale), ErrorKind::NotFound, gone(stale))?;
    stands_at(&*session, fresh, 0)?;
    let tokens = subject.tokens(5, 4)?;
    let chosen = greedy(&mut *session, fresh, &tokens)?;
    subject.agrees(&chosen, &tokens, "the sequence opened after")
}
