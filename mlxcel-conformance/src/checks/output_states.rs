//! Hidden states beside answers, which draft heads read. Needs a subject whose model can be loaded with them.

use mlxcel_core::{
    Control, ErrorKind, InferenceSession, Pooling, Row, RowResult, SamplingPlan, StepOutput, Want,
};

use crate::checks::hidden::hidden;
use crate::failure::{Failure, Outcome, ensure, refused};
use crate::outlook::{expect_token, logits_error, step};
use crate::subject::Subject;

/// The states and the result of a step of one row.
fn with_states(session: &mut dyn InferenceSession, row: Row<'_>) -> Outcome<(Vec<f32>, RowResult)> {
    let mut out = StepOutput::new();
    session.step(&[row], &Control::default(), &mut out)?;
    let states = out.take_states(0).ok_or_else(|| Failure::new("a row that wants states has none"));
    let result = out.take_only("step")?;
    Ok((states?, result))
}

/// A row that wants states gets that of each of its tokens beside its answer, whether the text comes whole,
/// in chunks, with draft tokens or beside other rows: the states that pooling its texts gives. Rows that do
/// not want them have none, and answers stay as they are.
///
/// Kills: `one_state_for_all_tokens`, `states_of_the_last_chunk`, `answers_without_states`.
pub fn states_accompany_answers(subject: &Subject<'_>) -> Outcome {
    let (model, plan) = (subject.model_with_states()?, SamplingPlan::greedy());
    let claimed = model.capabilities().clone();
    let Some(width) = claimed.output_states else {
        return Err(Failure::new("a model that was loaded with output states does not claim them"));
    };
    let mut session = model.open_session(&Default::default())?;
    let text = subject.tokens(4, subject.length(40)?)?;
    let expected = if claimed.hidden_states.is_some() {
        let sequence = session.open()?;
        let state = |token: &_| hidden(&mut *session, sequence, std::slice::from_ref(token), Pooling::Last);
        let states = text.iter().map(state).collect::<Outcome<Vec<_>>>()?;
        session.close(sequence)?;
        states.concat()
    } else {
        let sequence = session.open()?;
        let (states, _) =
            with_states(&mut *session, Row::new(sequence, &text, Want::nothing().with_states()))?;
        session.close(sequence)?;
        states
    };
    let most = subject.tolerance()?.logits;
    let same = |states: &[f32], first: usize, what: &str| -> Outcome {
        let expected = expected.get(first * width..first * width + states.len()).unwrap_or_default();
        let error = logits_error(states, expected);
        ensure!(
            error.is_some_and(|error| error <= most),
            "{what}: states differ by {error:?} of the largest"
        );
        Ok(())
    };
    for cut in [text.len(), 1, text.len() / 2] {
        let sequence = session.open()?;
        let mut fed = 0;
        for chunk in text.chunks(cut) {
            let want = Want::token(&plan).with_states();
            let (states, result) = with_states(&mut *session, Row::new(sequence, chunk, want))?;
            ensure!(
                states.len() == chunk.len() * width,
                "{} elements for {} tokens",
                states.len(),
                chunk.len()
            );
            same(&states, fed, "a chunk")?;
            fed += chunk.len();
            subject.agrees(&expect_token(result)?, &text[..fed], "the answer beside states")?;
        }
        session.close(sequence)?;
    }
    if claimed.verification && text.len() > 5 {
        let sequence = session.open()?;
        let want = Want::token(&plan).with_drafts(3).with_states();
        let (states, result) = with_states(&mut *session, Row::new(sequence, &text[..5], want))?;
        ensure!(states.len() == 5 * width, "{} elements for a row with draft tokens", states.len());
        same(&states, 0, "a row with draft tokens")?;
        ensure!(
            matches!(&result, RowResult::Tokens(tokens) if tokens.len() == 4),
            "not all drafts are answered"
        );
        session.close(sequence)?;
    }
    if claimed.sequences > 1 {
        let sequences = [session.open()?, session.open()?];
        let rows = [
            Row::next(sequences[0], &text[..3], &plan),
            Row::new(sequences[1], &text, Want::token(&plan).with_states()),
        ];
        let mut out = StepOutput::new();
        session.step(&rows, &Control::default(), &mut out)?;
        ensure!(out.take_states(0).is_none(), "a row has states that it does not want");
        same(&out.take_states(1).unwrap_or_default(), 0, "a row beside another")?;
    }
    let mut plain = subject.session()?;
    let sequence = plain.open()?;
    let row = Row::new(sequence, &text, Want::token(&plan).with_states());
    refused(
        step(&mut *plain, &[row])?.remove(0),
        ErrorKind::Unsupported,
        "states that the model does not claim",
    )
}
