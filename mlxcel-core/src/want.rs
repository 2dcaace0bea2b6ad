//! What a row of a step wants: an answer, at some of its tokens.

use std::ops::Range;

use crate::plan::SamplingPlan;
use crate::sampling::TokenMask;

/// The result that a [`Row`](crate::Row) wants: an [answer](Answer) after each token that [`Positions`]
/// selects.
///
/// | answer \ positions | [`First`](Positions::First) | [`Last`](Positions::Last) | [`Drafts`](Positions::Drafts) | [`All`](Positions::All) |
/// |---|---|---|---|---|
/// | [`Token`](Answer::Token) | | one token | tokens that verify drafts | |
/// | [`Logits`](Answer::Logits) | | logits | logits that verify drafts | |
/// | [`Likelihoods`](Answer::Likelihoods) | | | | the score of a text |
/// | [`Hidden`](Answer::Hidden) | the first hidden state | the last hidden state | | the mean of the hidden states |
/// | [`EachHidden`](Answer::EachHidden) | | | | all hidden states |
///
/// The empty combinations are [`Unsupported`](crate::ErrorKind::Unsupported).
///
/// ```
/// use mlxcel_core::{SamplingPlan, Want};
///
/// let plan = SamplingPlan::greedy();
/// let next = Want::token(&plan).with_top(5);
/// let verified = Want::token(&plan).with_drafts(3);
/// assert_eq!((next.count(8), verified.count(8)), (1, 4));
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Want<'a> {
    /// The tokens of the row after which there is an answer.
    pub positions: Positions,
    /// The answer at each of them.
    pub answer: Answer<'a>,
    /// Whether the hidden state of each of the row's tokens is returned too, in
    /// [`StepOutput::take_states`](crate::StepOutput::take_states), for a [draft
    /// head](crate::ModelPart::DraftHead); needs
    /// [`Capabilities::output_states`](crate::Capabilities::output_states). Not beside [`Answer::Hidden`] or
    /// [`Answer::EachHidden`].
    pub states: bool,
}

/// The tokens of a row after which a result is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Positions {
    /// None: the tokens are part of a prompt.
    None,
    /// The row's first token.
    First,
    /// The row's last token.
    Last,
    /// The row's last tokens, which are this many draft tokens, and the token before them. The row must have
    /// more tokens than that.
    ///
    /// This verifies drafts in one pass: the first draft token is accepted if it equals the first answer, and
    /// so on. Answers are those that the tokens would get if they were fed one by one. Afterwards the
    /// sequence holds all of the row's tokens; the caller [rewinds](crate::InferenceSession::rewind) the
    /// rejected ones before the sequence's next row. Needs
    /// [`Capabilities::verification`](crate::Capabilities::verification).
    Drafts(usize),
    /// Every token of the row.
    All,
}

/// The answer at a position.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Answer<'a> {
    /// No answer.
    Nothing,
    /// The next token, sampled by the engine, and its log probability. Draws are of each position, and
    /// penalties read the tokens in front of it, draft tokens included.
    Token {
        /// How to choose; its place must be the device.
        plan: &'a SamplingPlan,
        /// The tokens that may be chosen, for each position; empty for all tokens. Needs
        /// [`Capabilities::token_masks`](crate::Capabilities::token_masks).
        masks: &'a [TokenMask],
        /// How many most likely tokens to report too, at most
        /// [`Capabilities::top_logprobs`](crate::Capabilities::top_logprobs).
        top: u16,
    },
    /// One logit for each token of the vocabulary; needs
    /// [`Capabilities::logits`](crate::Capabilities::logits).
    Logits,
    /// The most likely token and the log probability of the row's own next token, to score a text; needs
    /// [`Capabilities::every_position`](crate::Capabilities::every_position).
    Likelihoods {
        /// How many most likely tokens to report at each position.
        top: u16,
    },
    /// The mean of the hidden states at the positions, after the last norm, as an embedding; needs
    /// [`Capabilities::hidden_states`](crate::Capabilities::hidden_states).
    ///
    /// The state of a token depends only on the tokens before it, unless the model [reads in both
    /// directions](crate::Capabilities::generation).
    Hidden,
    /// The hidden states at the positions, one behind the other; needs the same. For pooling that engines do
    /// not know.
    EachHidden,
}

/// How [`Want::hidden`] pools the hidden states of a row.
///
/// A hidden state is the residual stream at one position after the last norm, the input of the LM head.
/// transformers calls the states of all positions `last_hidden_state`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Pooling {
    /// The state of the row's last token, which attends to all tokens before it.
    #[default]
    Last,
    /// The state of the row's first token, such as `[CLS]`, if attention is bidirectional; see
    /// [`Capabilities::generation`](crate::Capabilities::generation). A causal model's first token attends to
    /// nothing else.
    First,
    /// The mean over the row's tokens. Earlier tokens of the sequence are attended to, but not averaged.
    Mean,
}

impl<'a> Want<'a> {
    /// This answer at these positions.
    pub fn new(positions: Positions, answer: Answer<'a>) -> Self {
        Self { positions, answer, states: false }
    }

    /// No result.
    pub fn nothing() -> Self {
        Self::new(Positions::None, Answer::Nothing)
    }

    /// The next token after the row, sampled by `plan` from all tokens.
    pub fn token(plan: &'a SamplingPlan) -> Self {
        Self::new(Positions::Last, Answer::Token { plan, masks: &[], top: 0 })
    }

    /// The logits after the row.
    pub fn logits() -> Self {
        Self::new(Positions::Last, Answer::Logits)
    }

    /// The score of each token of the row, with the `top` most likely tokens there.
    pub fn likelihoods(top: u16) -> Self {
        Self::new(Positions::All, Answer::Likelihoods { top })
    }

    /// The hidden states of the row, pooled to one vector.
    pub fn hidden(pooling: Pooling) -> Self {
        let positions = match pooling {
            Pooling::First => Positions::First,
            Pooling::Last => Positions::Last,
            Pooling::Mean => Positions::All,
        };
        Self::new(positions, Answer::Hidden)
    }

    /// The hidden state of each of the row's tokens.
    pub fn each_hidden() -> Self {
        Self::new(Positions::All, Answer::EachHidden)
    }

    setters! {
        /// The same answer at each of the row's last `drafts` tokens, which are draft tokens, and at the token
        /// before them.
        with_drafts(drafts: usize) => positions = Positions::Drafts(drafts);
        /// Also returns the hidden state of each of the row's tokens.
        with_states() => states = true;
    }

    /// For a token: limits the choice at each position to those of a mask; empty allows all tokens.
    #[must_use]
    pub fn with_masks(mut self, allowed: &'a [TokenMask]) -> Self {
        if let Answer::Token { masks, .. } = &mut self.answer {
            *masks = allowed;
        }
        self
    }

    /// For a token or likelihoods: reports this many most likely tokens too.
    #[must_use]
    pub fn with_top(mut self, count: u16) -> Self {
        if let Answer::Token { top, .. } | Answer::Likelihoods { top } = &mut self.answer {
            *top = count;
        }
        self
    }

    /// How many of the row's last tokens are draft tokens; `None` if the row verifies nothing.
    pub fn drafts(&self) -> Option<usize> {
        match self.positions {
            Positions::Drafts(drafts) => Some(drafts),
            _ => None,
        }
    }

    /// How many positions of a row of `tokens` tokens have an answer, or for [`Positions::First`] are needed
    /// for it.
    pub fn count(&self, tokens: usize) -> usize {
        self.within(tokens, 0..tokens)
    }

    /// For engines: how many answers a row of `tokens` tokens needs within `fed`, a range of its tokens. They
    /// are those at the last tokens of the range; for [`Positions::First`] they are all tokens of the
    /// range that has the row's first. This is the rule for which output rows of a pass an engine reads.
    pub fn within(&self, tokens: usize, fed: Range<usize>) -> usize {
        let unwanted = match (self.positions, self.answer) {
            (Positions::None, _) | (_, Answer::Nothing) => tokens,
            (Positions::First, _) if fed.start > 0 => tokens,
            (Positions::First, _) => 0,
            (Positions::Last, _) => tokens.saturating_sub(1),
            (Positions::Drafts(drafts), _) => tokens.saturating_sub(drafts + 1),
            (Positions::All, _) => 0,
        };
        fed.end.min(tokens).saturating_sub(unwanted.max(fed.start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_needed_at_the_wanted_positions_of_a_range() {
        let plan = SamplingPlan::greedy();
        for (want, [whole, first, second]) in [
            (Want::nothing(), [0, 0, 0]),
            (Want::token(&plan), [1, 0, 1]),
            (Want::logits(), [1, 0, 1]),
            (Want::logits().with_drafts(0), [1, 0, 1]),
            (Want::logits().with_drafts(3), [4, 1, 3]),
            (Want::likelihoods(0), [10, 7, 3]),
            (Want::hidden(Pooling::Last), [1, 0, 1]),
            (Want::hidden(Pooling::Mean), [10, 7, 3]),
            (Want::hidden(Pooling::First), [10, 7, 0]),
            (Want::each_hidden(), [10, 7, 3]),
        ] {
            let counts = [want.count(10), want.within(10, 0..7), want.within(10, 7..10)];
            assert_eq!(counts, [whole, first, second], "{want:?}");
        }
        assert_eq!(Want::likelihoods(0).within(10, 7..12), 3);
    }
}
