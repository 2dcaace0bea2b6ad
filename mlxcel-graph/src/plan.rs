//! Splits a step into passes over the weights.

use crate::shape::Outputs;

/// A row of a step that still has tokens to feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pending {
    /// How many tokens it has left.
    pub(crate) remaining: usize,
    /// What it wants.
    pub(crate) wants: Wants,
}

/// What a row of a step wants from the passes that feed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wants {
    /// A result at its last token, or none.
    Last,
    /// A result at every token.
    Every,
    /// The hidden state of its last token.
    LastHidden,
    /// The hidden states of every token.
    EveryHidden,
    /// Results at the last tokens, this many: draft tokens to verify, and the token before them.
    Ends(usize),
}

impl Wants {
    fn is_hidden(self) -> bool {
        matches!(self, Self::LastHidden | Self::EveryHidden)
    }
}

/// Which of the pending rows the next pass feeds, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pass {
    /// For each row of the program: the index of the row of the step, its tokens, and the room that the
    /// program has for them.
    pub(crate) rows: Vec<PassRow>,
    /// What the program gives.
    pub(crate) outputs: Outputs,
}

/// One row of a [`Pass`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PassRow {
    pub(crate) row: usize,
    pub(crate) tokens: usize,
    pub(crate) room: usize,
}

/// The sizes that prompt chunks may have, ascending: few, since every one takes programs of its own.
///
/// A pass reads all weights, which costs as computing some tokens does. So a long prompt goes in the largest
/// chunks, and what remains of it in those that cost least, padding included. Texts that are read in both
/// directions go whole: each, or several together, in the least size that holds them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chunks {
    sizes: Vec<usize>,
    /// How many tokens texts that share a pass have together, if they go whole.
    whole: Option<usize>,
}

impl Chunks {
    /// About this many tokens take as long to compute as the weights take to read: fewer where weights are
    /// packed, more where there are many cores.
    const TOKENS_A_PASS: usize = 16;

    /// Chunks of these sizes.
    pub(crate) fn new(sizes: &[usize]) -> Self {
        let mut sizes = sizes.to_vec();
        sizes.sort_unstable();
        sizes.dedup();
        Self { sizes, whole: None }
    }

    /// Sizes for whole texts of up to `capacity` tokens: powers of two, and the capacity. Texts that share a
    /// pass have at most `together` tokens.
    pub(crate) fn whole(capacity: usize, together: usize) -> Self {
        let powers = std::iter::successors(Some(LEAST_TEXT), |size| size.checked_mul(2));
        let sizes = powers.take_while(|&size| size < capacity).chain([capacity]).collect();
        Self { sizes, whole: Some(together) }
    }

    /// Whether a pass is of whole texts: one row of its program, in which they stand one behind the other.
    pub(crate) fn are_whole(&self) -> bool {
        self.whole.is_some()
    }

    /// All sizes, ascending.
    pub(crate) fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// The size of the next chunk of a prompt of which `remaining` tokens are left.
    pub(crate) fn size_for(&self, remaining: usize) -> usize {
        let largest = self.largest();
        if self.whole.is_some() {
            return self.sizes.iter().copied().find(|&size| size >= remaining).unwrap_or(largest);
        }
        if remaining >= largest {
            return largest;
        }
        let cost = |size: usize| remaining.div_ceil(size) * (size + Self::TOKENS_A_PASS);
        // Of equal costs the larger size takes fewer passes.
        self.sizes.iter().rev().copied().min_by_key(|&size| cost(size)).unwrap_or(largest)
    }

    /// The sizes below `room`, the largest first.
    pub(crate) fn smaller_than(&self, room: usize) -> impl Iterator<Item = usize> + '_ {
        self.sizes.iter().rev().copied().filter(move |&size| size < room)
    }

    /// The largest size.
    pub(crate) fn largest(&self) -> usize {
        self.sizes.last().copied().unwrap_or(1)
    }

    /// The sizes that are ever chosen for prompts of up to `most` tokens, ascending, each with the fewest
    /// tokens for which it is.
    pub(crate) fn chosen(&self, most: usize) -> Vec<(usize, usize)> {
        let mut chosen: Vec<(usize, usize)> = Vec::new();
        for tokens in 2..=most.min(self.largest().max(2)) {
            let size = self.size_for(tokens);
            if chosen.iter().all(|&(known, _)| known != size) {
                chosen.push((size, tokens));
            }
        }
        chosen.sort_unstable();
        chosen
    }
}

/// How many tokens a row with draft tokens has room for, ascending: more take longer to compute than the
/// weights to read. The largest is also how many tokens the rows of a pass have together.
const VERIFIED: [usize; 4] = [2, 4, 8, 16];

impl Chunks {
    /// The room that rows with draft tokens may have: none for more than a prompt chunk, behind whose padding
    /// caches end.
    pub(crate) fn verified(&self) -> impl DoubleEndedIterator<Item = usize> + '_ {
        VERIFIED.into_iter().filter(|&room| room <= self.largest())
    }

    /// The rooms of rows with draft tokens, each with how many such rows share a pass at most, of `width`.
    pub(crate) fn verified_together(&self, width: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        let most = VERIFIED[VERIFIED.len() - 1];
        self.verified().map(move |room| (room, width.min(most / room)))
    }

    /// `pass` with less room where its chunk is short: that of rows with draft tokens, whose programs cost by
    /// their few tokens and give every
    /// position. None where there is no such room for its rows.
    pub(crate) fn shortened(&self, pass: &Pass, width: usize) -> Option<Pass> {
        let chunk = pass.rows.first().filter(|_| pass.outputs <= Outputs::Every)?;
        let (room, together) = self.verified_together(width).find(|&(room, _)| room >= chunk.tokens)?;
        let fits = chunk.tokens > 1 && room < chunk.room && pass.rows.len() <= together;
        let rows = pass.rows.iter().map(|&row| PassRow { room, ..row }).collect();
        fits.then_some(Pass { rows, outputs: Outputs::Every })
    }

    /// For how many tokens of a row with draft tokens a pass has room.
    pub(crate) fn most_verified(&self) -> usize {
        self.verified().last().unwrap_or(1)
    }

    /// The room for `tokens` of a row with draft tokens, or for as many of them as a pass takes.
    fn room_for(&self, tokens: usize) -> usize {
        self.verified().find(|&room| room >= tokens).unwrap_or(self.most_verified())
    }
}

/// The least size of a whole text: a shorter one costs hardly less.
const LEAST_TEXT: usize = 16;

/// The next pass over whole texts: the first, and behind it others that fit into the same size, without
/// padding between them, up to `shared` tokens unless the first alone has more.
fn next_whole(pending: &[Pending], chunks: &Chunks, shared: usize, width: usize) -> Option<Pass> {
    let texts = pending.iter().enumerate().filter(|(_, row)| row.remaining > 0);
    let mut rows: Vec<PassRow> = Vec::new();
    let (mut most, mut together) = (0, 0);
    for (row, &Pending { remaining: tokens, .. }) in texts {
        if rows.is_empty() {
            most = chunks.size_for(tokens.max(shared));
        } else if together + tokens > most || rows.len() >= width {
            continue;
        }
        rows.push(PassRow { row, tokens, room: tokens });
        together += tokens;
    }
    // The padding is behind the last.
    rows.last_mut()?.room += chunks.size_for(together).saturating_sub(together);
    Some(Pass { rows, outputs: Outputs::Hidden })
}

/// How many short prompts share a pass whose results are wanted at every position: few numbers, since every
/// one takes programs of its own.
pub(crate) const JOINED: [usize; 3] = [8, 4, 2];

impl Chunks {
    /// `pass` with the chunks of further rows, where its own is of the least size and all of them want hidden
    /// states, or results at every position, as embeddings and scores of many short texts do. None where
    /// there are no such rows.
    ///
    /// Prompts that are generated from do not share passes so: one of them is computed for as long as the
    /// other rows of its step wait.
    pub(crate) fn joined(&self, pass: &Pass, pending: &[Pending], width: usize) -> Option<Pass> {
        let &room = self.sizes.first()?;
        let first = pass.rows.first().filter(|row| row.room == room)?;
        let hidden = pending[first.row].wants.is_hidden();
        let is_kin = |row: &Pending| match row.wants {
            Wants::Every => !hidden,
            Wants::LastHidden | Wants::EveryHidden => hidden,
            Wants::Last | Wants::Ends(_) => false,
        };
        // The rest of a row is cut as it would be alone.
        let fits = |row: &Pending| row.remaining > 1 && is_kin(row) && self.size_for(row.remaining) == room;
        let rows = pending.iter().enumerate().filter(|(_, row)| fits(row));
        let mut rows: Vec<_> = rows
            .map(|(index, row)| PassRow { row: index, tokens: row.remaining.min(room), room })
            .take(width)
            .collect();
        let together = JOINED.into_iter().find(|&together| together <= rows.len())?;
        rows.truncate(together);
        Some(Pass { rows, outputs: if hidden { Outputs::Hidden } else { Outputs::Every } })
    }
}

/// The next pass over rows with draft tokens, all of which it gives room for as many tokens as the first
/// needs; decoding rows ride along. The
/// weights are read once for them, and few programs are needed: those of this many equal rows.
fn next_verified(pending: &[Pending], chunks: &Chunks, width: usize) -> Option<Pass> {
    let needed = |row: &Pending| match row.wants {
        Wants::Ends(_) | Wants::Last | Wants::Every if row.remaining == 1 => Some(1),
        Wants::Ends(ends) if row.remaining > 1 && row.remaining <= ends => {
            Some(chunks.room_for(row.remaining))
        }
        _ => None,
    };
    let room = pending.iter().filter_map(needed).find(|&needed| needed > 1)?;
    let together = chunks.verified_together(width).find(|&(own, _)| own == room).map_or(1, |(_, rows)| rows);
    let fitting = |least: usize| {
        let fits = move |&(_, row): &(usize, &Pending)| {
            needed(row).is_some_and(|needed| needed <= room && (needed > 1) == (least > 1))
        };
        pending.iter().enumerate().filter(fits)
    };
    let row = |(index, row): (usize, &Pending)| PassRow { row: index, tokens: row.remaining.min(room), room };
    let rows = fitting(2).chain(fitting(1)).take(together).map(row).collect();
    Some(Pass { rows, outputs: Outputs::Every })
}

/// The next pass over `pending`: at most one prompt chunk, of a size that `chunks` has, and up to `width`
/// rows in all. [`GraphModelOptions::programs`](crate::GraphModelOptions::programs) lists the shapes that
/// come out of this.
///
/// Rows with one token are decoding and ride along with a chunk, so that they neither wait for a long prompt
/// nor read the weights a second time. Two chunks do not share a pass: each already keeps the arithmetic
/// units busy, and every combination of shapes is a program to compile.
///
/// Rows with draft tokens have passes of their own, behind those with chunks; what precedes the draft tokens
/// of a long row is computed as a prompt
/// is.
///
/// Nor do rows that want hidden states share a pass with others: programs give those or logits. Those with
/// one token share passes of few sizes, and of those with more tokens each has a pass of its own unless [they
/// are joined](Chunks::joined).
pub(crate) fn next_pass(pending: &[Pending], chunks: &Chunks, width: usize) -> Option<Pass> {
    if let Some(shared) = chunks.whole {
        return next_whole(pending, chunks, shared, width);
    }
    let hidden = pending.iter().find(|row| row.remaining > 0)?.wants.is_hidden();
    let is_kin = |row: &Pending| row.wants.is_hidden() == hidden;
    // What is left of a row but what is verified, whose last token that is verified with.
    let ahead = |row: &Pending| match row.wants {
        Wants::Ends(ends) if row.remaining > 1 => row.remaining.saturating_sub(ends),
        _ => row.remaining,
    };
    let chunk_row = pending.iter().position(|row| {
        let is_verified = matches!(row.wants, Wants::Ends(_)) && row.remaining > 1;
        is_kin(row) && ahead(row) > usize::from(!is_verified)
    });
    if chunk_row.is_none()
        && !hidden
        && let Some(pass) = next_verified(pending, chunks, width)
    {
        return Some(pass);
    }
    let decoding = pending.iter().enumerate().filter(|(_, row)| row.remaining == 1 && is_kin(row));
    let mut rows: Vec<PassRow> = chunk_row
        .map(|index| {
            let remaining = ahead(&pending[index]);
            let room = if remaining > 1 { chunks.size_for(remaining) } else { 1 };
            PassRow { row: index, tokens: remaining.min(room), room }
        })
        .into_iter()
        .chain(decoding.map(|(index, _)| PassRow { row: index, tokens: 1, room: 1 }))
        .take(width)
        .collect();
    if hidden {
        // Texts end at any time, and any number of them at once: without this each number would take a
        // program of its own.
        let is_chunk = rows.first().is_some_and(|row| row.room > 1);
        let together = JOINED.into_iter().find(|&together| together <= rows.len());
        rows.truncate(together.filter(|_| !is_chunk).unwrap_or(1));
    }
    let asks = |row: &PassRow| match pending[row.row].wants {
        Wants::Last | Wants::Ends(_) => Outputs::Last,
        // The last position of a single token is its every position.
        Wants::Every => {
            if row.room > 1 {
                Outputs::Every
            } else {
                Outputs::Last
            }
        }
        Wants::LastHidden if row.tokens < pending[row.row].remaining => Outputs::Last,
        Wants::LastHidden | Wants::EveryHidden => Outputs::Hidden,
    };
    // What gives more gives what the others ask for too.
    let outputs = rows.iter().map(asks).max()?;
    Some(Pass { rows, outputs })
}

#[cfg(test)]
mod tests;
