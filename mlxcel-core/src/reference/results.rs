//! From logits to log probabilities.

use crate::{PositionResult, TokenId, TokenLogprob};

/// Logits of a position, with the natural log of the sum of their exponentials.
pub(super) struct Distribution<'a> {
    logits: &'a [f32],
    total: f64,
}

impl<'a> Distribution<'a> {
    /// The distribution that the softmax of `logits` is. The logits are small, so nothing overflows.
    pub(super) fn new(logits: &'a [f32]) -> Self {
        Self { logits, total: logits.iter().map(|&logit| f64::from(logit).exp()).sum::<f64>().ln() }
    }

    pub(super) fn logprob(&self, token: TokenId) -> f32 {
        (f64::from(self.logits[token as usize]) - self.total) as f32
    }

    /// The `count` most likely tokens, most likely first, ties go to the lowest id.
    pub(super) fn top(&self, count: u16) -> Vec<TokenLogprob> {
        let mut order: Vec<TokenId> = (0..).take(self.logits.len()).collect();
        // The sort is stable, so equals stay in the order of their ids.
        order.sort_by(|&a, &b| self.logits[b as usize].total_cmp(&self.logits[a as usize]));
        order.truncate(usize::from(count));
        order.into_iter().map(|token| TokenLogprob { token, logprob: self.logprob(token) }).collect()
    }

    /// What a position says, if the token that `following` it is known.
    pub(super) fn position(&self, following: Option<TokenId>, count: u16) -> PositionResult {
        let mut top = self.top(count.max(1));
        let best = top.first().copied().unwrap_or(TokenLogprob { token: 0, logprob: f32::NAN });
        top.truncate(usize::from(count));
        PositionResult::new(best, following.map(|token| self.logprob(token))).with_top(top)
    }
}
