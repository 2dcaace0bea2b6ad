//! Invalid rows are rejected without affecting others.

use mlxcel_core::{Control, ErrorKind, Row, RowResult, SamplingPlan, SequenceId, StepOutput};

use crate::failure::{Outcome, ensure, refused};
use crate::outlook::{expect_token, extend, stands_at, step};
use crate::subject::Subject;
use crate::walk::Walk;

/// A step without rows is rejected.
///
/// Kills: `accepts_no_rows`.
pub fn no_rows_are_refused(subject: &Subject<'_>) -> Outcome {
    let mut session = subject.session()?;
    let result = session.step(&[], &Control::default(), &mut StepOutput::new());
    refused(result, ErrorKind::InvalidInput, "a step without rows")
}

/// Rows without tokens, with a token outside the vocabulary or of an unknown sequence return the right kinds
/// of errors and change nothing.
///
/// Kills: `accepts_empty_rows`, `wraps_tokens`.
pub fn bad_rows_are_refused(subject: &Subject<'_>) -> Outcome {
    let mut session = subject.session()?;
    let plan = SamplingPlan::greedy();
    let vocabulary = u32::try_from(subject.model()?.info().vocabulary_size).unwrap_or(u32::MAX);
    let mut walk = Walk::open(&mut *session, subject.tokens(0, 5)?)?;
    walk.run(subject, &mut *session, 1, "before")?;
    let sequence = walk.sequence;
    let unknown = SequenceId::new(u64::MAX - 1);
    let before = session.stats();
    for (row, kind, what) in [
        (Row::next(sequence, &[], &plan), ErrorKind::InvalidInput, "a row without tokens"),
        (
            Row::next(sequence, &[vocabulary], &plan),
            ErrorKind::InvalidInput,
            "the vocabulary's size as a token",
        ),
        (
            Row::next(sequence, &[0, u32::MAX, 0], &plan),
            ErrorKind::InvalidInput,
            "the largest number as a token",
        ),
        (Row::next(unknown, &[0], &plan), ErrorKind::NotFound, "an unknown sequence"),
    ] {
        refused(step(&mut *session, &[row])?.remove(0), kind, what)?;
        stands_at(&*session, sequence, walk.held.len())?;
    }
    ensure!(session.stats().tokens == before.tokens, "tokens were computed for rows that were refused");
    refused(session.state(unknown), ErrorKind::NotFound, "the state of an unknown sequence")?;
    refused(session.close(unknown), ErrorKind::NotFound, "closing an unknown sequence")?;
    walk.run(subject, &mut *session, 2, "after refusals")
}

/// Of two rows of one sequence the second is rejected, and the first runs.
///
/// Kills: `accepts_duplicates`.
pub fn duplicate_rows_are_refused(subject: &Subject<'_>) -> Outcome {
    let mut session = subject.session()?;
    let plan = SamplingPlan::greedy();
    let mut walk = Walk::open(&mut *session, subject.tokens(1, 4)?)?;
    let rows = [Row::next(walk.sequence, &walk.pending, &plan), Row::next(walk.sequence, &[0], &plan)];
    let mut results = step(&mut *session, &rows)?;
    refused(results.remove(1), ErrorKind::InvalidInput, "a second row of one sequence")?;
    walk.take(subject, &expect_token(results.remove(0)?)?, "the first row of two")?;
    stands_at(&*session, walk.sequence, walk.held.len())?;
    walk.run(subject, &mut *session, 2, "after a second row was refused")
}

/// An invalid row returns its error, and valid rows of the same step run.
///
/// Kills: `one_bad_row_fails_all`, `omits_bad_rows`.
pub fn bad_rows_harm_no_others(subject: &Subject<'_>) -> Outcome {
    let mut session = subject.session()?;
    let plan = SamplingPlan::greedy();
    let mut walk = Walk::open(&mut *session, subject.tokens(2, 6)?)?;
    let unknown = SequenceId::new(u64::MAX - 1);
    for turn in 0..3 {
        let rows = [
            Row::next(unknown, &[0], &plan),
            Row::next(walk.sequence, &walk.pending, &plan),
            Row::extend(unknown, &[]),
        ];
        let mut results = step(&mut *session, &rows)?;
        ensure!(results.remove(2).is_err(), "the third row is invalid and ran");
        let good = results.remove(1);
        refused(results.remove(0), ErrorKind::NotFound, "an unknown sequence beside a known one")?;
        walk.take(subject, &expect_token(good?)?, format_args!("between invalid rows, turn {turn}"))?;
    }
    // Results left in a reused output do not reach the next step.
    let mut out = StepOutput::new();
    let rows = [Row::extend(unknown, &[0]), Row::extend(walk.sequence, &walk.pending)];
    session.step(&rows, &Control::default(), &mut out)?;
    session.step(&[Row::extend(walk.sequence, &[0])], &Control::default(), &mut out)?;
    ensure!(
        matches!(out.rows(), [Ok(RowResult::Extended)]),
        "a reused output holds {} results for one row",
        out.rows().len()
    );
    Ok(())
}

/// Counters never decrease, and count the tokens fed.
///
/// Kills: `miscounts_tokens`, `stats_fall`.
pub fn stats_are_monotone(subject: &Subject<'_>) -> Outcome {
    let mut session = subject.session()?;
    let mut last = session.stats();
    ensure!(last.tokens == 0 && last.passes == 0, "a fresh session has computed {} tokens", last.tokens);
    for (number, length) in [1, 6, 1, 11, 2].into_iter().enumerate() {
        let sequence = session.open()?;
        extend(&mut *session, sequence, &subject.tokens(number, length)?)?;
        let stats = session.stats();
        ensure!(
            stats.tokens == last.tokens + length as u64,
            "{length} tokens were counted as {}",
            stats.tokens.wrapping_sub(last.tokens)
        );
        ensure!(stats.passes > last.passes, "{length} tokens took no pass");
        last = stats;
        session.close(sequence)?;
        let stats = session.stats();
        ensure!(
            stats.tokens >= last.tokens
                && stats.passes >= last.passes
                && stats.uploaded_bytes >= last.uploaded_bytes
                && stats.read_back_bytes >= last.read_back_bytes
                && stats.compile_time >= last.compile_time,
            "a counter decreased from {last:?} to {stats:?}"
        );
        last = stats;
    }
    Ok(())
}
