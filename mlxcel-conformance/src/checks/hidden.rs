//! Pooled hidden states. Needs hidden states.

use mlxcel_core::{InferenceSession, Pooling, Row, RowResult, SamplingPlan, SequenceId, TokenId};

use crate::failure::{Outcome, ensure};
use crate::outlook::{expect_token, extend, logits_error, step, unexpected};
use crate::subject::Subject;

/// Feeds `tokens` and returns their pooled hidden state.
pub(super) fn hidden(
    session: &mut dyn InferenceSession,
    sequence: SequenceId,
    tokens: &[TokenId],
    pooling: Pooling,
) -> Outcome<Vec<f32>> {
    expect_hidden(step(session, &[Row::hidden(sequence, tokens, pooling)])?.remove(0)?)
}

fn expect_hidden(result: RowResult) -> Outcome<Vec<f32>> {
    match result {
        RowResult::Hidden(state) => Ok(state),
        other => Err(unexpected("hidden states", &other)),
    }
}

/// The result of a fresh session for `tokens` at once.
fn alone(subject: &Subject<'_>, tokens: &[TokenId], pooling: Pooling) -> Outcome<Vec<f32>> {
    let mut session = subject.session()?;
    let sequence = session.open()?;
    hidden(&mut *session, sequence, tokens, pooling)
}

/// Fails if two states differ by more than logits may.
fn same(subject: &Subject<'_>, state: &[f32], expected: &[f32], what: impl std::fmt::Display) -> Outcome {
    let most = subject.tolerance()?.logits;
    let error = logits_error(state, expected);
    ensure!(
        error.is_some_and(|error| error <= most),
        "{what}: of {} elements, not {}, or they differ by {error:?} of the largest",
        state.len(),
        expected.len()
    );
    Ok(())
}

/// A pooled state has the claimed number of elements, all finite, and differs between texts. Needs hidden
/// states.
///
/// Kills: `cuts_hidden_states`, `returns_one_hidden_state`.
pub fn hidden_states_are_complete(subject: &Subject<'_>) -> Outcome {
    let claimed = subject.model()?.capabilities().hidden_states;
    let mut session = subject.session()?;
    for pooling in [Pooling::Last, Pooling::Mean] {
        let mut known: Vec<Vec<f32>> = Vec::new();
        for number in 0..3 {
            let sequence = session.open()?;
            let tokens = subject.tokens(number, 1 + 4 * number)?;
            let state = hidden(&mut *session, sequence, &tokens, pooling)?;
            session.close(sequence)?;
            ensure!(
                claimed == Some(state.len()),
                "{} elements came, and {claimed:?} are claimed",
                state.len()
            );
            ensure!(state.iter().all(|element| element.is_finite()), "an element is not a finite number");
            ensure!(!known.contains(&state), "two texts have the same state, pooled as {pooling:?}");
            known.push(state);
        }
    }
    Ok(())
}

/// The state of the last token is the same for any prefill chunking, including single-token rows. Needs
/// hidden states.
///
/// Kills: `hidden_states_forget`.
pub fn hidden_states_do_not_depend_on_chunks(subject: &Subject<'_>) -> Outcome {
    let text = subject.tokens(6, subject.length(70)?)?;
    let expected = alone(subject, &text, Pooling::Last)?;
    let mut session = subject.session()?;
    for cut in [1, text.len() / 3, text.len() - 1] {
        let sequence = session.open()?;
        for chunk in text[..cut].chunks((text.len() / 4).max(1)) {
            extend(&mut *session, sequence, chunk)?;
        }
        let state = hidden(&mut *session, sequence, &text[cut..], Pooling::Last)?;
        session.close(sequence)?;
        same(subject, &state, &expected, format_args!("the state after {cut} tokens and the remainder"))?;
    }
    Ok(())
}

/// The mean, and each of the states, are those of the row's own tokens, equal to those computed step by step,
/// also over several chunks and after earlier tokens of the sequence. Needs hidden states.
///
/// Kills: `means_are_last`, `means_include_earlier_tokens`.
pub fn mean_pooling_covers_the_row(subject: &Subject<'_>) -> Outcome {
    let text = subject.tokens(7, subject.length(70)?)?;
    let mut session = subject.session()?;
    let sequence = session.open()?;
    let each = text.iter().map(|&token| hidden(&mut *session, sequence, &[token], Pooling::Last));
    let each = each.collect::<Outcome<Vec<_>>>()?;
    session.close(sequence)?;
    let mean = |states: &[Vec<f32>]| -> Vec<f32> {
        let sum = |element: usize| states.iter().map(|state| f64::from(state[element])).sum::<f64>();
        (0..states[0].len()).map(|element| (sum(element) / states.len() as f64) as f32).collect()
    };
    for held in [0, 3, text.len() / 2] {
        let sequence = session.open()?;
        if held > 0 {
            extend(&mut *session, sequence, &text[..held])?;
        }
        let state = hidden(&mut *session, sequence, &text[held..], Pooling::Mean)?;
        session.close(sequence)?;
        same(subject, &state, &mean(&each[held..]), format_args!("the mean after {held} tokens"))?;
        let sequence = session.open()?;
        if held > 0 {
            extend(&mut *session, sequence, &text[..held])?;
        }
        let row = Row::each_hidden(sequence, &text[held..]);
        let states = expect_hidden(step(&mut *session, &[row])?.remove(0)?)?;
        session.close(sequence)?;
        same(subject, &states, &each[held..].concat(), format_args!("the states after {held} tokens"))?;
    }
    Ok(())
}

/// Rows that want hidden states can be batched with others, and each gets the same result as alone. Needs
/// hidden states and two sequences.
///
/// Kills: `swaps_hidden_states`.
pub fn hidden_states_mix_with_other_wants(subject: &Subject<'_>) -> Outcome {
    let mut session = subject.session()?;
    let count = session.capabilities().sequences.min(3);
    let texts = (0..count).map(|number| subject.tokens(number, 4 + number));
    let texts = texts.collect::<mlxcel_core::Result<Vec<_>>>()?;
    let plan = SamplingPlan::greedy();
    // The row that wants a token comes first, then after the first of the others.
    for place in 0..2 {
        let sequences = texts.iter().map(|_| session.open()).collect::<mlxcel_core::Result<Vec<_>>>()?;
        let row = |index: usize| match index == place {
            true => Row::next(sequences[index], &texts[index], &plan),
            false => Row::hidden(sequences[index], &texts[index], pooling_of(index)),
        };
        let rows: Vec<_> = (0..count).map(row).collect();
        for (index, result) in step(&mut *session, &rows)?.into_iter().enumerate() {
            let what = format!("row {index} of {count}");
            match index == place {
                true => subject.agrees(&expect_token(result?)?, &texts[index], &what)?,
                false => {
                    let expected = alone(subject, &texts[index], pooling_of(index))?;
                    same(subject, &expect_hidden(result?)?, &expected, &what)?;
                }
            }
        }
        sequences.into_iter().try_for_each(|sequence| session.close(sequence))?;
    }
    Ok(())
}

fn pooling_of(row: usize) -> Pooling {
    if row == 1 { Pooling::Mean } else { Pooling::Last }
}
