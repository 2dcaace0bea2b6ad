//! Cutting a step into passes over the weights.

use crate::shape::Outputs;

/// A row of a step that still has tokens to feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pending {
    /// How many tokens it has left.
    pub(crate) remaining: usize,
    /// Whether results at every position are wanted.
    pub(crate) every: bool,
}

/// Which of the pending rows the next pass feeds, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pass {
    /// For each row of the program: the index of the pending row, its tokens, and the room that the program has for them.
    pub(crate) rows: Vec<PassRow>,
    /// Which positions give logits.
    pub(crate) outputs: Outputs,
}

/// One row of a [`Pass`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PassRow {
    pub(crate) pending: usize,
    pub(crate) tokens: usize,
    pub(crate) room: usize,
}

/// The next pass over `pending`: at most one prompt chunk, of up to `chunk` tokens, and up to `width` rows in all.
/// [`GraphModelOptions::programs`](crate::GraphModelOptions::programs) lists the shapes that come out of this.
///
/// Rows with one token are decoding and ride along with a chunk, so that they neither wait for a long prompt nor read the
/// weights a second time. Two chunks do not share a pass: each already keeps the arithmetic units busy, and every
/// combination of shapes is a program to compile.
pub(crate) fn next_pass(pending: &[Pending], chunk: usize, width: usize) -> Option<Pass> {
    let chunk_row = pending.iter().position(|row| row.remaining > 1);
    let decoding = pending.iter().enumerate().filter(|(_, row)| row.remaining == 1);
    let rows: Vec<PassRow> = chunk_row
        .map(|index| PassRow { pending: index, tokens: pending[index].remaining.min(chunk), room: chunk })
        .into_iter()
        .chain(decoding.map(|(index, _)| PassRow { pending: index, tokens: 1, room: 1 }))
        .take(width)
        .collect();
    // The last position of a single token is its every position.
    let every = rows.iter().any(|row| row.room > 1 && pending[row.pending].every);
    let outputs = if every { Outputs::Every } else { Outputs::Last };
    (!rows.is_empty()).then_some(Pass { rows, outputs })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the plan to its end; each pass as (pending row, tokens, room).
    fn passes(remaining: &[usize], width: usize) -> Vec<Vec<(usize, usize, usize)>> {
        let mut pending: Vec<_> =
            remaining.iter().map(|&remaining| Pending { remaining, every: false }).collect();
        let mut passes = Vec::new();
        while let Some(pass) = next_pass(&pending, 64, width) {
            for row in &pass.rows {
                pending[row.pending].remaining -= row.tokens;
            }
            passes.push(pass.rows.iter().map(|row| (row.pending, row.tokens, row.room)).collect());
        }
        passes
    }

    #[test]
    fn decoding_rows_share_one_pass() {
        assert_eq!(passes(&[1, 1, 1, 1], 4), [[(0, 1, 1), (1, 1, 1), (2, 1, 1), (3, 1, 1)]]);
        assert_eq!(passes(&[1; 6], 4).len(), 2);
        assert_eq!(passes(&[1; 3], 1).len(), 3);
    }

    #[test]
    fn decoding_rows_ride_along_with_the_first_chunk() {
        assert_eq!(
            passes(&[1, 130, 1], 4),
            [vec![(1, 64, 64), (0, 1, 1), (2, 1, 1)], vec![(1, 64, 64)], vec![(1, 2, 64)]]
        );
    }

    #[test]
    fn only_a_chunk_can_ask_for_outputs_at_every_position() {
        let outputs = |pending: &[(usize, bool)]| {
            let pending: Vec<_> =
                pending.iter().map(|&(remaining, every)| Pending { remaining, every }).collect();
            next_pass(&pending, 64, 4).unwrap().outputs
        };
        assert_eq!(outputs(&[(1, true)]), Outputs::Last);
        assert_eq!(outputs(&[(5, false), (1, true)]), Outputs::Last);
        assert_eq!(outputs(&[(5, true), (1, false)]), Outputs::Every);
    }

    #[test]
    fn the_last_single_token_of_a_prompt_is_a_decoding_row() {
        assert_eq!(passes(&[65], 4), [[(0, 64, 64)], [(0, 1, 1)]]);
    }
}
