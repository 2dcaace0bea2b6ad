//! Mutants that attend to other tokens than those of their sequence.

use mlxcel_core::{Control, Result, Row, TokenId};

use crate::mutants::Mutants;
use crate::mutants::twist::{Inner, Results, Twist, step};

pub(crate) const MISREADS: Mutants<Misreading> = &[
    // The second chunk of a prompt overwrites the last token of the first.
    ("chunk_off_by_one", |held, row, _| {
        (!held.is_empty() && row.tokens.len() > 1).then(|| [&held[..held.len() - 1], row.tokens].concat())
    }),
    // The cache is empty at every step.
    ("forgets_between_steps", |held, row, _| (!held.is_empty()).then(|| row.tokens.to_vec())),
    // Decoding does not see the second token.
    ("second_token_is_lost", |held, row, _| {
        (held.len() >= 2 && row.tokens.len() == 1).then(|| [&held[..1], &held[2..], row.tokens].concat())
    }),
    // A recurrence processes the padding of a chunk.
    ("padding_leaks", |held, row, _| {
        let padding = vec![0; held.len().next_multiple_of(16) - held.len()];
        (!padding.is_empty()).then(|| [held, &padding, row.tokens].concat())
    }),
    // A chunk as long as a window overwrites the token before it.
    ("full_windows_lose_a_token", |held, row, _| {
        (!held.is_empty() && row.tokens.len() == crate::mutants::WINDOW)
            .then(|| [&held[..held.len() - 1], row.tokens].concat())
    }),
    // The rows of a batch attend to the first row's cache.
    ("shares_kv", |held, row, step| {
        (step.len() > 1).then(|| [&step[0].0, &held[step[0].0.len().min(held.len())..], row.tokens].concat())
    }),
    // The rows of a batch are padded in front, and the padding is attended to.
    ("rounds_to_the_longest", |held, row, step| {
        let longest = step.iter().map(|(held, tokens)| held.len() + tokens.len()).max()?;
        let padding = vec![0; longest - held.len() - row.tokens.len()];
        (!padding.is_empty()).then(|| [&padding, held, row.tokens].concat())
    }),
    // A decoding row beside a prompt chunk comes a token late.
    ("chunk_delays_the_others", |held, row, step| {
        let beside_chunk = step.iter().any(|(_, tokens)| tokens.len() > 1);
        (beside_chunk && row.tokens.len() == 1 && !held.is_empty()).then(|| held.to_vec())
    }),
];

/// What a sequence held before a row and what the row feeds, of each row of the step.
type Step = [(Vec<TokenId>, Vec<TokenId>)];

type Misreading = fn(held: &[TokenId], row: &Row<'_>, step: &Step) -> Option<Vec<TokenId>>;

/// Answers a row as if its sequence held what the function says; rightly where it says nothing.
pub(crate) struct Misread(pub(crate) Misreading);

impl Twist for Misread {
    fn step(&mut self, inner: &mut Inner, rows: &[Row<'_>], control: &Control<'_>) -> Results {
        let before: Vec<_> = rows.iter().map(|row| (inner.text(row.sequence), row.tokens.to_vec())).collect();
        let results = inner.step(rows, control)?;
        let wrong = results.into_iter().zip(rows).zip(&before).map(|((result, row), (held, _))| {
            result.and_then(|result| match (self.0)(held, row, &before) {
                Some(context) => misread(inner, &context, row),
                None => Ok(result),
            })
        });
        Ok(wrong.collect())
    }
}

/// What a row would be answered with if its sequence held `context`, its own tokens included.
pub(crate) fn misread(
    inner: &mut Inner,
    context: &[TokenId],
    row: &Row<'_>,
) -> Result<mlxcel_core::RowResult> {
    let sequence = inner.scratch.open()?;
    let tokens = row.tokens.len().min(context.len());
    let (held, fed) = context.split_at(context.len() - tokens);
    if !held.is_empty() {
        step(&mut *inner.scratch, &[Row::extend(sequence, held)])?.remove(0)?;
    }
    let result = step(&mut *inner.scratch, &[Row::new(sequence, fed, row.want)])?.remove(0);
    inner.scratch.close(sequence)?;
    result
}
