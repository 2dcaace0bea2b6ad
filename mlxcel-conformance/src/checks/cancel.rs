//! Stopping work that is under way.

use std::time::{Duration, Instant};

use mlxcel_core::{
    CancelToken, Control, ErrorKind, FinishReason, GenerateOptions, Row, RowResult, SamplingPlan, StepOutput,
    TokenChoice, TokenStream,
};

use crate::failure::{Failure, Outcome, ensure, refused};
use crate::outlook::{Walk, extend, stands_at};
use crate::subject::Subject;

/// A step that was cancelled before it began computes nothing, and its sequences go on as if it had not been.
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
            session.prefill(Row::next(walk.sequence, tokens, &plan), &Control::cancelled_by(&cancel));
        refused(result, ErrorKind::Cancelled, "a step that was cancelled before")?;
        stands_at(&*session, walk.sequence, walk.held.len())?;
    }
    ensure!(session.stats().tokens == before.tokens, "tokens were computed after cancellation");
    walk.run(subject, &mut *session, 2, "after a cancelled step")
}

/// A prompt that is cancelled under way stops at a boundary: the sequence says how far it came, goes on from there, and is
/// right.
///
/// Kills: `cancel_overstates_the_position`.
pub fn cancelled_prompts_go_on(subject: &Subject<'_>) -> Outcome {
    let mut session = subject.session()?;
    let text = subject.tokens(2, subject.model()?.info().capacity.min(320) - 2)?;
    // How long it takes when nobody stops it.
    let sequence = session.open()?;
    let started = Instant::now();
    extend(&mut *session, sequence, &text)?;
    let whole = started.elapsed();
    session.close(sequence)?;
    for part in 1..4 {
        let cancel = CancelToken::new();
        let delay = (whole * part / 4).min(Duration::from_secs(1));
        let sequence = session.open()?;
        let mut out = StepOutput::new();
        std::thread::scope(|scope| {
            let elsewhere = cancel.clone();
            scope.spawn(move || {
                std::thread::sleep(delay);
                elsewhere.cancel();
            });
            session.step(&[Row::extend(sequence, &text)], &Control::cancelled_by(&cancel), &mut out)
        })?;
        let reached = session.state(sequence)?.position;
        match out.take().pop() {
            Some(Ok(RowResult::Extended)) => stands_at(&*session, sequence, text.len())?,
            Some(Err(error)) => {
                refused(Err::<(), _>(error), ErrorKind::Cancelled, "a prompt stopped under way")?;
                ensure!(reached < text.len(), "it was stopped, and holds all {reached} tokens");
                stands_at(&*session, sequence, reached)?;
            }
            _ => return Err(Failure::new("a prompt was answered with something else")),
        }
        // The rest of the text, or one token more where all of it is in.
        let mut walk = Walk { sequence, held: text[..reached].to_vec(), pending: text[reached..].to_vec() };
        if walk.pending.is_empty() {
            walk.pending = subject.tokens(3, 1)?;
        }
        walk.run(subject, &mut *session, 1, format_args!("gone on from {reached} of {}", text.len()))?;
        session.close(sequence)?;
    }
    Ok(())
}

/// A generation that is cancelled between tokens ends as `Cancelled`, and its sequence goes on.
///
/// Kills: `cancel_sticks`.
pub fn cancelled_generations_go_on(subject: &Subject<'_>) -> Outcome {
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
    // It holds the prompt and the tokens but the last.
    let mut held = [&prompt[..], &tokens[..2]].concat();
    stands_at(&*session, sequence, held.len())?;
    let result = session.prefill(Row::extend(sequence, &tokens[2..]), &Control::cancelled_by(&cancel));
    refused(result, ErrorKind::Cancelled, "a step by a token that was cancelled long ago")?;
    held.truncate(prompt.len() + 2);
    let mut walk = Walk { sequence, held, pending: tokens[2..].to_vec() };
    walk.run(subject, &mut *session, 2, "a cancelled generation gone on with")
}
