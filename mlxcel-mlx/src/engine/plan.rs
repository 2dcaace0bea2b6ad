//! Splits a step into passes over the weights.

/// Some tokens of a row, fed in one pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PassRow {
    /// The index of the row.
    pub(super) row: usize,
    /// The number of its tokens.
    pub(super) tokens: usize,
}

/// The rows of the next pass, given each row's remaining tokens: up to `width` rows, and up to `chunk` prompt
/// tokens in total.
///
/// A row with one remaining token is decoding: it joins any pass, so that it neither waits for a long prompt
/// nor reads the weights a second time. Short prompts share a pass, a long one takes several; cancellation is
/// checked after each.
pub(super) fn next_pass(remaining: &[usize], chunk: usize, width: usize) -> Vec<PassRow> {
    let mut room = chunk.max(1);
    let mut pass = Vec::new();
    for (row, &left) in remaining.iter().enumerate().filter(|&(_, &left)| left > 0) {
        let tokens = if left == 1 { 1 } else { left.min(room) };
        if tokens > 0 && pass.len() < width {
            pass.push(PassRow { row, tokens });
            room -= if left == 1 { 0 } else { tokens };
        }
    }
    pass
}

/// How many tokens whole rows that share a pass have together: more read the weights no more often per token
/// to speak of.
const WHOLE_TOKENS: usize = 2048;

/// The rows of the next pass of a model that reads texts in both directions: up to `width` whole rows.
pub(super) fn whole_rows(remaining: &[usize], width: usize) -> Vec<PassRow> {
    let mut room = WHOLE_TOKENS;
    let mut pass = Vec::new();
    for (row, &tokens) in remaining.iter().enumerate().filter(|&(_, &left)| left > 0) {
        if pass.is_empty() || (tokens <= room && pass.len() < width) {
            pass.push(PassRow { row, tokens });
            room = room.saturating_sub(tokens);
        }
    }
    pass
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the plan to its end; returns each pass as (row, tokens).
    fn passes(remaining: &[usize], chunk: usize, width: usize) -> Vec<Vec<(usize, usize)>> {
        let mut remaining = remaining.to_vec();
        let mut passes = Vec::new();
        loop {
            let pass = next_pass(&remaining, chunk, width);
            if pass.is_empty() {
                return passes;
            }
            pass.iter().for_each(|row| remaining[row.row] -= row.tokens);
            passes.push(pass.iter().map(|row| (row.row, row.tokens)).collect());
        }
    }

    #[test]
    fn decoding_rows_share_one_pass_with_prompt_chunks() {
        assert_eq!(passes(&[1, 1, 1], 64, 4), [[(0, 1), (1, 1), (2, 1)]]);
        assert_eq!(passes(&[1; 6], 64, 4).len(), 2);
        assert_eq!(passes(&[1, 130, 1], 64, 4), [vec![(0, 1), (1, 64), (2, 1)], vec![(1, 64)], vec![(1, 2)]]);
    }

    #[test]
    fn whole_rows_share_passes_and_are_never_split() {
        let rows = |remaining: &[usize], width| -> Vec<_> {
            whole_rows(remaining, width).iter().map(|row| (row.row, row.tokens)).collect()
        };
        assert_eq!(rows(&[0, 9, 2000, 40, 30], 8), [(1, 9), (2, 2000), (4, 30)]);
        assert_eq!(rows(&[5000, 9], 8), [(0, 5000)]);
        assert_eq!(rows(&[9, 9, 9], 2), [(0, 9), (1, 9)]);
    }

    #[test]
    fn prompts_share_the_token_budget_of_a_pass() {
        assert_eq!(passes(&[20, 30, 40], 64, 4), [vec![(0, 20), (1, 30), (2, 14)], vec![(2, 26)]]);
        assert_eq!(passes(&[64, 30, 1], 64, 4), [vec![(0, 64), (2, 1)], vec![(1, 30)]]);
        assert_eq!(passes(&[2, 2], 1, 4), [vec![(0, 1)], vec![(0, 1), (1, 1)], vec![(1, 1)]]);
    }

    #[test]
    fn every_token_is_planned_for_any_limits() {
        for (chunk, width) in [(1, 1), (2, 3), (7, 2), (64, 16)] {
            let passes = passes(&[5, 1, 17, 2], chunk, width);
            let fed =
                |row| passes.iter().flatten().filter(|fed| fed.0 == row).map(|fed| fed.1).sum::<usize>();
            assert_eq!([0, 1, 2, 3].map(fed), [5, 1, 17, 2]);
            assert!(passes.iter().all(|pass| pass.len() <= width));
        }
    }
}
