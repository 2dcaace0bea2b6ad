//! A device that fails. Needs [`Subject::with_faulty`].

use mlxcel_core::{ErrorKind, InferenceSession, Row, SamplingPlan, SessionOptions};

use crate::failure::{Failure, Outcome, ensure, refused};
use crate::outlook::{Walk, extend, stands_at, step};
use crate::subject::Subject;

/// A session whose pass after `passes` good ones fails.
fn faulty(subject: &Subject<'_>, passes: u64) -> Outcome<Box<dyn InferenceSession>> {
    let model = subject.faulty_model(passes)?;
    let model = model.ok_or_else(|| Failure::new("the subject makes no faulty device"))?;
    Ok(model.open_session(&SessionOptions::default())?)
}

/// A sequence that saw a device fault says so, refuses everything but to be closed, and is then gone.
///
/// Kills: `forgets_poison`, `poison_cannot_be_closed`.
pub fn faults_poison(subject: &Subject<'_>) -> Outcome {
    let mut session = faulty(subject, 1)?;
    let plan = SamplingPlan::greedy();
    let tokens = subject.tokens(0, 4)?;
    let sequence = session.open()?;
    extend(&mut *session, sequence, &tokens)?;
    let result = step(&mut *session, &[Row::next(sequence, &tokens[..1], &plan)])?.remove(0);
    refused(result, ErrorKind::Device, "a step whose device fails")?;
    ensure!(session.state(sequence)?.poisoned, "a device fault left the sequence healthy");
    let poisoned = ErrorKind::Poisoned;
    for _ in 0..2 {
        let result = step(&mut *session, &[Row::next(sequence, &tokens[..1], &plan)])?.remove(0);
        refused(result, poisoned, "a step of a poisoned sequence")?;
        let claimed = session.capabilities().clone();
        if claimed.rewind {
            refused(session.rewind(sequence, 0), poisoned, "rewinding a poisoned sequence")?;
        }
        if claimed.fork && claimed.sequences >= 2 {
            refused(session.fork(sequence), poisoned, "forking a poisoned sequence")?;
        }
        if claimed.snapshot {
            refused(session.snapshot(sequence), poisoned, "a snapshot of a poisoned sequence")?;
        }
        ensure!(session.state(sequence)?.poisoned, "a poisoned sequence got well by being asked");
    }
    session.close(sequence)?;
    refused(session.state(sequence), ErrorKind::NotFound, "a poisoned sequence after it was closed")?;
    let mut walk = Walk::open(&mut *session, tokens)?;
    walk.run(subject, &mut *session, 2, "a new sequence after a fault")
}

/// A fault poisons the rows that ran, and no sequence besides. Needs two sequences.
///
/// Kills: `faults_poison_all`.
pub fn faults_spare_the_others(subject: &Subject<'_>) -> Outcome {
    let mut session = faulty(subject, 2)?;
    let plan = SamplingPlan::greedy();
    let mut idle = Walk::open(&mut *session, subject.tokens(1, 5)?)?;
    idle.run(subject, &mut *session, 1, "before")?;
    let running = session.open()?;
    extend(&mut *session, running, &subject.tokens(2, 3)?)?;
    let result = step(&mut *session, &[Row::next(running, &[0], &plan)])?.remove(0);
    refused(result, ErrorKind::Device, "a step whose device fails")?;
    stands_at(&*session, idle.sequence, idle.held.len())?;
    idle.run(subject, &mut *session, 2, "after a fault beside it")?;
    // A poisoned row beside a healthy one.
    let rows = [Row::next(running, &[0], &plan), Row::next(idle.sequence, &idle.pending, &plan)];
    let mut results = step(&mut *session, &rows)?;
    let healthy = results.pop().ok_or_else(|| Failure::new("the healthy row has no answer"))??;
    let poisoned = results.pop().ok_or_else(|| Failure::new("the poisoned row has no answer"))?;
    refused(poisoned, ErrorKind::Poisoned, "a poisoned row beside a healthy one")?;
    idle.take(subject, &crate::outlook::expect_token(healthy)?, "beside a poisoned row")
}
