//! The capacity of sequences.

use mlxcel_core::{ErrorKind, Row, SamplingPlan, SessionOptions};

use crate::failure::{Outcome, ensure, refused};
use crate::outlook::{extend, stands_at, step};
use crate::subject::Subject;
use crate::walk::Walk;

/// A sequence holds exactly as many tokens as its capacity, and is correct up to the last one.
///
/// Kills: `capacity_one_short`.
pub fn fills_exactly(subject: &Subject<'_>) -> Outcome {
    let model = subject.model()?;
    // The model's own capacity if it is small, so that caches grow to their final size.
    let capacity = model.info().capacity.min(512);
    let mut session = model.open_session(&SessionOptions::default().with_capacity(capacity))?;
    // In one step, and with single steps at the end.
    for left in [0, 3] {
        let mut walk = Walk::open(&mut *session, subject.tokens(left, capacity - left)?)?;
        walk.run(subject, &mut *session, left + 1, format_args!("with {left} tokens left"))?;
        stands_at(&*session, walk.sequence, capacity)?;
        session.close(walk.sequence)?;
    }
    Ok(())
}

/// One token beyond the capacity is rejected before any work, and the sequence is unchanged.
///
/// Kills: `capacity_one_beyond`, `fills_up_before_rejecting`, `truncates_rows_at_the_capacity`.
pub fn one_beyond_is_refused(subject: &Subject<'_>) -> Outcome {
    let capacity = 12;
    let model = subject.model()?;
    let mut session = model.open_session(&SessionOptions::default().with_capacity(capacity))?;
    let tokens = subject.tokens(0, capacity + 1)?;
    let plan = SamplingPlan::greedy();
    let sequence = session.open()?;
    let before = session.stats();
    let result = step(&mut *session, &[Row::next(sequence, &tokens, &plan)])?.remove(0);
    refused(result, ErrorKind::CapacityExceeded, "a prompt one token too long")?;
    stands_at(&*session, sequence, 0)?;
    ensure!(session.stats().tokens == before.tokens, "tokens were computed for a prompt that does not fit");
    extend(&mut *session, sequence, &tokens[..8])?;
    let before = session.stats();
    let result = step(&mut *session, &[Row::next(sequence, &tokens[8..], &plan)])?.remove(0);
    refused(result, ErrorKind::CapacityExceeded, "a chunk one token too long")?;
    stands_at(&*session, sequence, 8)?;
    ensure!(session.stats().tokens == before.tokens, "tokens were computed for a chunk that does not fit");
    // The sequence is unchanged: the remaining tokens give correct results.
    let mut walk = Walk { sequence, held: tokens[..8].to_vec(), pending: tokens[8..capacity].to_vec() };
    walk.run(subject, &mut *session, 1, "after a refusal")?;
    let result = step(&mut *session, &[Row::next(sequence, &tokens[..1], &plan)])?.remove(0);
    refused(result, ErrorKind::CapacityExceeded, "a token for a full sequence")?;
    stands_at(&*session, sequence, capacity)
}
