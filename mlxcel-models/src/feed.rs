//! The tokens that a row of a step feeds next.

use std::ops::Range;

use mlxcel_core::{Positions, StepRow, StepRows};

use crate::rope::RopeEpochs;

/// What a sequence holds before a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// The number of its tokens.
    pub position: usize,
    /// How many of them its state holds.
    pub computed: usize,
    /// The epoch in which its state was computed; see [`RopeEpochs::at`].
    pub epoch: usize,
}

/// For engines: the tokens that a row of a step feeds next, all under the rotary frequencies of one epoch.
///
/// First come tokens of the sequence that its state lacks, because it was computed under other frequencies or
/// lost; they are computed again. Then come tokens of the row. An engine splits a feed into passes as it
/// likes, takes those off by [`advance`](Self::advance), and plans the next feed when none are left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Feed {
    /// The positions of the sequence's own tokens that are computed again. Its start is where the next pass
    /// begins, its end the number of tokens that the sequence holds.
    pub recompute: Range<usize>,
    /// How many of the row's next tokens follow.
    pub new: usize,
    /// The epoch of the rotary frequencies.
    pub epoch: usize,
    /// The length of the sequence after the feed: the one that selects the frequencies.
    pub length: usize,
}

/// For engines: a row of a step, with the tokens that it feeds next.
pub type FedRow<'r> = StepRow<'r, Feed>;

/// For engines: the rows of a step.
pub type FedRows<'r> = StepRows<'r, Feed>;

impl Feed {
    /// The next feed of `row`, whose sequence holds `held`.
    ///
    /// The frequencies of a row are those of the sequence's length after it. But a result at a position
    /// depends only on the tokens before it: a row with results at every position, and draft tokens, are
    /// computed as if fed one by one, so their feeds end with an epoch. Tokens before draft tokens are
    /// fed as a whole.
    pub fn next<W>(row: &StepRow<'_, W>, held: Held, epochs: &RopeEpochs) -> Self {
        let Held { position, computed, epoch: held } = held;
        let mut length = position + row.remaining();
        let drafts = row.drafts_left();
        if row.want().positions == Positions::All || drafts > 0 {
            let from = if drafts > 0 { length - drafts - 1 } else { position };
            length = epochs.end_after(from).map_or(length, |end| length.min(end));
        }
        let epoch = epochs.at(length);
        let computed = if epoch == held { computed } else { 0 };
        Self { recompute: computed..position, new: length - position, epoch, length }
    }

    /// Whether `row` waits for a result and has fed all that was planned, so that its next feed is due.
    pub fn is_due(row: &FedRow<'_>) -> bool {
        row.is_waiting() && row.progress.tokens() == 0
    }

    /// How many tokens of its feed `row` has left; none once it has a result.
    pub fn left(row: &FedRow<'_>) -> usize {
        if row.is_waiting() { row.progress.tokens() } else { 0 }
    }

    /// How many tokens are left to feed.
    pub fn tokens(&self) -> usize {
        self.recompute.len() + self.new
    }

    /// How many of the next `count` tokens are the row's own: the last ones.
    pub fn new_within(&self, count: usize) -> usize {
        count.saturating_sub(self.recompute.len()).min(self.new)
    }

    /// The positions of the tokens among the next `count` that are computed again: the first ones.
    pub fn recomputed_within(&self, count: usize) -> Range<usize> {
        self.recompute.start..self.recompute.end.min(self.recompute.start + count)
    }

    /// Takes off the next `count` tokens, which have been fed.
    pub fn advance(&mut self, count: usize) {
        let new = self.new_within(count);
        let again = self.recomputed_within(count).len();
        // With the row's own tokens, the sequence grows.
        self.recompute = self.recompute.start + again + new..self.recompute.end + new;
        self.new -= new;
    }
}

#[cfg(test)]
mod tests {
    use mlxcel_core::{
        Answer, Capabilities, PositionResult, Row, RowResult, SamplingPlan, SequenceTable, StepOutput,
        TokenLogprob, Want,
    };

    use super::*;
    use crate::{LongRope, Rope};

    /// Frequencies that change behind 8 positions.
    fn epochs() -> RopeEpochs {
        let long = LongRope { inv_freq: vec![0.5], original_context: 8, attention_factor: None };
        let inv_freq = vec![1.0];
        RopeEpochs::new(&[Rope {
            rotary_dim: 2,
            inv_freq,
            attention_factor: 1.0,
            interleaved: false,
            delay: 0,
            long: Some(long),
        }])
    }

    /// Answers of the right kind and number for the next `count` tokens.
    fn answers(row: &StepRow<'_, Feed>, count: usize) -> RowResult {
        let position = PositionResult::new(TokenLogprob { token: 0, logprob: 0.0 }, None);
        match (row.wanted(count), row.want().answer) {
            (0, _) => RowResult::Extended,
            (wanted, Answer::Likelihoods { .. }) => RowResult::Likelihoods(vec![position; wanted]),
            (wanted, _) => RowResult::Logits(vec![Vec::new(); wanted]),
        }
    }

    /// The feeds of a row of `tokens` behind `position` others, each in passes of 3, as (tokens computed
    /// again, new ones, epoch).
    fn feeds(tokens: usize, want: Want<'_>, position: usize) -> Vec<(usize, usize, usize)> {
        let (epochs, ids) = (epochs(), vec![1; tokens]);
        let claimed =
            Capabilities::new(1, 100).with_logits(true).with_every_position(true).with_verification(true);
        let mut table = SequenceTable::new(claimed, 10, |position: &usize| *position);
        let sequence = table.open("open sequence", position).unwrap();
        let mut out = StepOutput::new();
        let mut rows = table.begin::<Feed>(&[Row::new(sequence, &ids, want)], &mut out).unwrap();
        let row = &mut rows[0];
        let mut held = Held { position, computed: position, epoch: epochs.at(position) };
        let mut feeds = Vec::new();
        while row.remaining() > 0 {
            let mut feed = Feed::next(row, held, &epochs);
            assert_eq!((feed.length, feed.recompute.end), (held.position + feed.new, held.position));
            feeds.push((feed.recompute.len(), feed.new, feed.epoch));
            while feed.tokens() > 0 {
                let count = feed.tokens().min(3);
                let (again, new) = (feed.recomputed_within(count), feed.new_within(count));
                assert_eq!((again.start, again.len() + new), (feed.recompute.start, count));
                feed.advance(count);
                row.absorb(new, Ok(answers(row, new)));
                held.position += new;
                assert_eq!(feed.recompute.end, held.position);
            }
            held = Held { position: feed.length, computed: feed.length, epoch: feed.epoch };
        }
        feeds
    }

    #[test]
    fn a_sequence_is_computed_again_when_its_frequencies_change() {
        assert_eq!(feeds(5, Want::logits(), 2), [(0, 5, 0)]);
        assert_eq!(feeds(1, Want::logits(), 8), [(8, 1, 1)]);
        assert_eq!(feeds(9, Want::logits(), 2), [(2, 9, 1)]);
        assert_eq!(feeds(4, Want::logits(), 9), [(0, 4, 1)]);
    }

    #[test]
    fn results_at_every_position_end_a_feed_with_the_epoch() {
        assert_eq!(feeds(9, Want::likelihoods(0), 2), [(0, 6, 0), (8, 3, 1)]);
    }

    #[test]
    fn draft_tokens_are_fed_as_if_one_by_one_and_those_before_them_as_a_whole() {
        let drafts = |count| Want::logits().with_drafts(count);
        assert_eq!(feeds(4, drafts(3), 6), [(0, 2, 0), (8, 2, 1)]);
        assert_eq!(feeds(9, drafts(2), 2), [(2, 9, 1)]);
    }

    #[test]
    fn tokens_that_the_state_lacks_are_computed_first() {
        let greedy = SamplingPlan::greedy();
        let mut table = SequenceTable::new(Capabilities::new(1, 100), 10, |position: &usize| *position);
        let sequence = table.open("open sequence", 5).unwrap();
        let row = [Row::next(sequence, &[1, 2], &greedy)];
        let rows = table.begin::<Feed>(&row, &mut StepOutput::new()).unwrap();
        let feed = Feed::next(&rows[0], Held { position: 5, computed: 3, epoch: 0 }, &epochs());
        assert_eq!(feed, Feed { recompute: 3..5, new: 2, epoch: 0, length: 7 });
    }
}
