//! Cancellation.

use std::time::{Duration, Instant};

use mlxcel_core::{
    CancelToken, Control, ErrorKind, FinishReason, GenerateOptions, InferenceSession, InferenceSessionExt,
    Row, RowResult, SamplingPlan, SequenceId, StepOutput, TokenChoice, TokenId, TokenStream,
};

use crate::failure::{Failure, Outcome, ensure, refused};
use crate::outlook::{expect_token, extend, stands_at, step};
use crate::subject::Subject;
use crate::walk::Walk;

/// A step that is cancelled before it starts computes nothing and does not affect its sequences.
///
/// Kills: `ignores_cancel`, `cancel_loses_a_token`.
pub fn cancelled_steps_do_nothing(subject: &Subject<'_>) -> Outcome {
    let mut session = subject.session()?;
    let plan = SamplingPlan::greedy();
    let mut walk = Walk::open(&mut *session, subject.tokens(0, 6)?)?;
    walk.run(subject, &mut *session, 1, "before")?;
    let cancel = CancelToken::new();
    cancel.cancel();
    let before = session.stats();
    for tokens in [&walk.pending, &subject.tokens(1, subject.length(70)?.min(20))?] {
        let result =
            session.run_row(Row::next(walk.sequence, tokens, &plan), &Control::cancelled_by(&cancel));
        refused(result, ErrorKind::Cancelled, "a step that was cancelled before it started")?;
        stands_at(&*session, walk.sequence, walk.held.len())?;
    }
    ensure!(session.stats().tokens == before.tokens, "tokens were computed after cancellation");
    walk.run(subject, &mut *session, 2, "after a cancelled step")
}

/// A prompt that is cancelled while running, by its step or its row, stops at a chunk boundary; the sequence
/// reports its position and continues correctly from there. Prompts that take long enough are in fact
/// cancelled.
///
/// Kills: `cancel_overstates_the_position`, `notices_cancel_before_steps_alone`,
/// `notices_cancelled_rows_before_steps_alone`.
pub fn cancelled_prompts_resume(subject: &Subject<'_>) -> Outcome {
    let mut session = subject.session()?;
    let text = subject.tokens(2, subject.model()?.info().capacity.min(320) - 2)?;
    // The time without cancellation; the first run may compile programs.
    let mut whole = Duration::MAX;
    let mut passes = 0;
    for _ in 0..2 {
        let (sequence, before) = (session.open()?, session.stats().passes);
        let started = Instant::now();
        extend(&mut *session, sequence, &text)?;
        whole = whole.min(started.elapsed());
        passes = session.stats().passes - before;
        session.close(sequence)?;
    }
    let long = passes > 6 && whole > Duration::from_millis(20);
    let mut stopped = [false; 2];
    let mut delays = [whole / 3, whole / 3];
    for attempt in 0..16 {
        let by_row = attempt % 2 == 1;
        let (stopped, delay) = (&mut stopped[usize::from(by_row)], &mut delays[usize::from(by_row)]);
        if attempt >= 4 && (!long || *stopped) {
            continue;
        }
        let (sequence, position) = stop_under_way(&mut *session, &text, *delay, by_row)?;
        // The machine's load varies: cancel later if it was too early, and earlier if it was too late.
        *delay = if position == 0 { *delay * 2 } else { *delay / 2 };
        *stopped |= (1..text.len()).contains(&position);
        // The remainder of the text, or one more token if all of it was fed.
        let (held, pending) = text.split_at(position);
        let pending = if pending.is_empty() { subject.tokens(3, 1)? } else { pending.to_vec() };
        let mut walk = Walk { sequence, held: held.to_vec(), pending };
        let place = format!("continued from {position} of {}", text.len());
        walk.run(subject, &mut *session, 1, place)?;
        session.close(walk.sequence)?;
    }
    ensure!(!long || stopped[0], "a prompt of {passes} passes in {whole:?} was never stopped by its step");
    ensure!(!long || stopped[1], "a prompt of {passes} passes in {whole:?} was never stopped by its row");
    Ok(())
}

/// Feeds `text` to a new sequence, and stops its step or its row after `delay`.
fn stop_under_way(
    session: &mut dyn InferenceSession,
    text: &[TokenId],
    delay: Duration,
    by_row: bool,
) -> Outcome<(SequenceId, usize)> {
    let cancel = CancelToken::new();
    let sequence = session.open()?;
    let row = Row::extend(sequence, text);
    let (row, control) = match by_row {
        true => (row.with_cancel(&cancel), Control::default()),
        false => (row, Control::cancelled_by(&cancel)),
    };
    let mut out = StepOutput::new();
    std::thread::scope(|scope| {
        let elsewhere = cancel.clone();
        scope.spawn(move || {
            std::thread::sleep(delay);
            elsewhere.cancel();
        });
        session.step(&[row], &control, &mut out)
    })?;
    let position = session.state(sequence)?.position;
    match out.take().pop() {
        Some(Ok(RowResult::Extended)) => stands_at(session, sequence, text.len())?,
        Some(Err(error)) => {
            refused(Err::<(), _>(error), ErrorKind::Cancelled, "a prompt that was cancelled while running")?;
            ensure!(position < text.len(), "it was stopped, but all {position} tokens were fed");
            stands_at(session, sequence, position)?;
        }
        _ => return Err(Failure::new("a prompt returned another kind of result")),
    }
    Ok((sequence, position))
}

/// A row that is cancelled before its step computes nothing, and the other rows run. Needs two sequences.
///
/// Kills: `ignores_cancelled_rows`, `cancelled_row_stops_the_others`.
pub fn cancelled_rows_spare_the_others(subject: &Subject<'_>) -> Outcome {
    let mut session = subject.session()?;
    let plan = SamplingPlan::greedy();
    let (cancelled, going) = (CancelToken::new(), CancelToken::new());
    cancelled.cancel();
    for first in [true, false] {
        let mut stopped = Walk::open(&mut *session, subject.tokens(0, 6)?)?;
        let mut other = Walk::open(&mut *session, subject.tokens(1, 9)?)?;
        stopped.run(subject, &mut *session, 1, "before")?;
        let before = session.stats().tokens;
        let mut rows = vec![
            Row::next(stopped.sequence, &stopped.pending, &plan).with_cancel(&cancelled),
            Row::next(other.sequence, &other.pending, &plan).with_cancel(&going),
        ];
        if !first {
            rows.reverse();
        }
        let mut results = step(&mut *session, &rows)?;
        if !first {
            results.reverse();
        }
        let computed = (session.stats().tokens - before) as usize;
        let fed = other.pending.len();
        let others = results.remove(1);
        refused(results.remove(0), ErrorKind::Cancelled, "a row that was cancelled before its step")?;
        ensure!(computed == fed, "a row of {fed} tokens beside a cancelled one computed {computed}");
        other.take(subject, &expect_token(others?)?, "beside a cancelled row")?;
        stopped.run(subject, &mut *session, 2, "after its row was cancelled")?;
        other.run(subject, &mut *session, 1, "after a step with a cancelled row")?;
        session.close(stopped.sequence)?;
        session.close(other.sequence)?;
    }
    Ok(())
}

/// A generation that is cancelled between tokens ends with `Cancelled`, and its sequence stays usable.
///
/// Kills: `cancel_sticks`.
pub fn cancelled_generations_resume(subject: &Subject<'_>) -> Outcome {
    let mut session = subject.session()?;
    let prompt = subject.tokens(4, 5)?;
    let sequence = session.open()?;
    let cancel = CancelToken::new();
    let options = GenerateOptions::new(10).with_cancel(cancel.clone());
    let choice = TokenChoice::Engine(SamplingPlan::greedy());
    let mut stream = TokenStream::new(&mut *session, sequence, &prompt, options, choice)?;
    let mut tokens = Vec::new();
    for token in &mut stream {
        tokens.push(token?.token);
        if tokens.len() == 3 {
            cancel.cancel();
        }
    }
    ensure!(
        tokens.len() == 3 && stream.finish_reason() == Some(FinishReason::Cancelled),
        "cancelled after 3 tokens, it gave {} and ended as {:?}",
        tokens.len(),
        stream.finish_reason()
    );
    // It holds the prompt and all tokens except the last.
    let mut held = [&prompt[..], &tokens[..2]].concat();
    stands_at(&*session, sequence, held.len())?;
    let result = session.run_row(Row::extend(sequence, &tokens[2..]), &Control::cancelled_by(&cancel));
    refused(result, ErrorKind::Cancelled, "a step with a token that was cancelled before")?;
    held.truncate(prompt.len() + 2);
    let mut walk = Walk { sequence, held, pending: tokens[2..].to_vec() };
    walk.run(subject, &mut *session, 2, "a resumed generation")
}
