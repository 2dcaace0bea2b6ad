//! Mutants that give other hidden states than those of their rows.

use mlxcel_core::{Answer, Control, Pooling, Positions, Row, RowResult, TokenId};

use crate::mutants::Mutants;
use crate::mutants::answers::Reanswering;
use crate::mutants::twist::{Inner, Results, Stepping, Twist, step};

pub(crate) const REANSWERS: Mutants<Reanswering> = &[
    ("cuts_hidden_states", |_, _, result| {
        if let RowResult::Hidden(state) = result {
            state.pop();
        }
    }),
    ("returns_one_hidden_state", |_, _, result| {
        if let RowResult::Hidden(state) = result {
            state.fill(0.5);
        }
    }),
];

pub(crate) const RECOMPUTES: Mutants<Instead> = &[
    ("means_are_last", |_, own, pooling| (pooling == Pooling::Mean).then(|| (own.to_vec(), Pooling::Last))),
    ("means_include_earlier_tokens", |held, _, pooling| {
        (pooling == Pooling::Mean).then(|| (held.to_vec(), Pooling::Mean))
    }),
    // A row is embedded as if it were the start of the sequence.
    ("hidden_states_forget", |_, own, pooling| Some((own.to_vec(), pooling))),
];

/// Rows that want hidden states are answered in reverse.
pub(crate) const STEPS: Mutants<Stepping> = &[("swaps_hidden_states", |inner, rows, control| {
    let mut results = inner.step(rows, control)?;
    let hidden: Vec<usize> =
        (0..rows.len()).filter(|&row| matches!(rows[row].want.answer, Answer::Hidden)).collect();
    for (&first, &last) in hidden.iter().zip(hidden.iter().rev()).take(hidden.len() / 2) {
        results.swap(first, last);
    }
    Ok(results)
})];

pub(crate) const RESTATES: Mutants<Restating> = &[
    ("one_state_for_all_tokens", |states, width| {
        let last = states.split_off(states.len() - width);
        *states = last.repeat(states.len() / width + 1);
    }),
    ("states_of_the_last_chunk", |states, width| {
        states.drain(..states.len().saturating_sub(16 * width));
    }),
    ("answers_without_states", |states, _| states.clear()),
];

/// Returns other states beside answers.
pub(crate) struct Restate(pub(crate) Restating);

type Restating = fn(states: &mut Vec<f32>, width: usize);

impl Twist for Restate {
    fn states(&mut self, states: &mut Vec<f32>, width: usize) {
        (self.0)(states, width);
    }
}

/// Which text is computed instead, and how it is pooled; told what the sequence holds, and the row's own
/// tokens.
type Instead = fn(held: &[TokenId], own: &[TokenId], pooling: Pooling) -> Option<(Vec<TokenId>, Pooling)>;

/// Answers a row with the states of another text.
pub(crate) struct Recompute(pub(crate) Instead);

impl Twist for Recompute {
    fn step(&mut self, inner: &mut Inner, rows: &[Row<'_>], control: &Control<'_>) -> Results {
        let mut results = inner.step(rows, control)?;
        for (row, result) in rows.iter().zip(&mut results) {
            let (Answer::Hidden, Ok(_)) = (row.want.answer, &result) else { continue };
            let pooling = if row.want.positions == Positions::All { Pooling::Mean } else { Pooling::Last };
            let held = inner.text(row.sequence);
            if let Some((tokens, pooling)) = (self.0)(&held, row.tokens, pooling) {
                let sequence = inner.scratch.open()?;
                *result = step(&mut *inner.scratch, &[Row::hidden(sequence, &tokens, pooling)])?.remove(0);
                inner.scratch.close(sequence)?;
            }
        }
        Ok(results)
    }
}
