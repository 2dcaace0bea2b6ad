//! Speculative decoding: draft tokens and their verification.

use std::collections::VecDeque;

use super::{Generation, SamplingContext, TokenChoice};
use crate::error::{Error, ErrorKind, Result};
use crate::sampling::TokenMask;
use crate::sequence::SequenceId;
use crate::session::InferenceSession;
use crate::step::{RowResult, SampledToken};
use crate::token::TokenId;

/// Tokens ahead of a generation's text.
#[derive(Default)]
pub(super) struct Ahead {
    /// The pending tokens with draft tokens behind them; empty where there are no draft tokens.
    pub(super) tokens: Vec<TokenId>,
    /// How many of `tokens` are draft tokens.
    pub(super) drafts: usize,
    /// What a row brought behind the token that [`Generation::accept`] gave.
    pub(super) ready: VecDeque<SampledToken>,
    drafted: usize,
    accepted: usize,
}

impl Ahead {
    fn forget_drafts(&mut self) {
        self.tokens.clear();
        self.drafts = 0;
    }
}

impl Generation {
    /// Sets draft tokens after the last token, for the next row only. If they fit, the row
    /// [verifies](crate::Positions::Drafts) them, and [`accept`](Self::accept) accepts those that equal the
    /// chosen tokens. So drafts never change a token, only how many tokens a row yields; a shorter row
    /// omits them. Rejected ones must be [rewound](Self::rewind).
    ///
    /// The engine needs [`Capabilities::verification`](crate::Capabilities::verification). Drafts beyond the
    /// end of the sequence or text, or without a [mask](Self::set_masks) if masks are set, are dropped.
    /// Returns how many are used.
    pub fn set_drafts(&mut self, drafts: &[TokenId]) -> usize {
        self.ahead.forget_drafts();
        let room = self.capacity.saturating_sub(self.tokens.len());
        let wanted = self.options.max_tokens.saturating_sub(self.generated().len() + 1);
        let masked = if self.masks.is_empty() { usize::MAX } else { self.masks.len() - 1 };
        let count = drafts.len().min(room).min(wanted).min(masked);
        if count > 0 && self.finish.is_none() && self.ahead.ready.is_empty() {
            self.ahead.tokens.extend_from_slice(&self.tokens[self.computed()..]);
            self.ahead.tokens.extend_from_slice(&drafts[..count]);
            self.ahead.drafts = count;
        }
        self.ahead.drafts
    }

    /// The maximum number of draft tokens in the next row.
    pub fn drafts(&self) -> usize {
        self.ahead.drafts
    }

    /// How many draft tokens were verified so far.
    pub fn drafted(&self) -> usize {
        self.ahead.drafted
    }

    /// How many draft tokens were accepted so far.
    pub fn accepted(&self) -> usize {
        self.ahead.accepted
    }

    /// Sets the masks of the next token and of the token after each draft, until they are set again. Empty
    /// allows all tokens.
    pub fn set_masks(&mut self, masks: Vec<TokenMask>) {
        self.masks = masks;
        // Tokens drafted under other masks may not be allowed.
        self.ahead.forget_drafts();
    }

    /// The next token that the last accepted row yielded. `None` if there is no other, or at a stop token,
    /// which ends the generation. A row with drafts may yield several: call it until it returns `None`,
    /// before the next row.
    pub fn next_ready(&mut self) -> Option<SampledToken> {
        if self.finish.is_some() {
            return None;
        }
        let token = self.ahead.ready.pop_front()?;
        self.commit(token)
    }

    /// Whether the last accepted row yielded tokens that were not [taken](Self::next_ready) yet.
    pub fn has_ready(&self) -> bool {
        self.finish.is_none() && !self.ahead.ready.is_empty()
    }

    /// The position that the sequence must be rewound to because of rejected draft tokens; `None` if there
    /// are none.
    pub fn rewind_target(&self) -> Option<usize> {
        let target = if self.finish.is_some() { self.computed() } else { self.valid };
        (self.held > target).then_some(target)
    }

    /// Rewinds `sequence` past rejected draft tokens, if it holds any. Call it before the next row, and
    /// before any other use of the sequence.
    ///
    /// # Errors
    ///
    /// The errors of [`InferenceSession::rewind`].
    pub fn rewind<S: InferenceSession + ?Sized>(
        &mut self,
        session: &mut S,
        sequence: SequenceId,
    ) -> Result<()> {
        if let Some(target) = self.rewind_target() {
            session.rewind(sequence, target)?;
            (self.held, self.valid) = (target, self.valid.min(target));
        }
        Ok(())
    }

    /// Processes the results of a row that ended with `drafts` draft tokens: the tokens that follow, up to
    /// the first that differs from the draft token in its place.
    pub(super) fn verify(&mut self, drafts: usize, result: RowResult) -> Result<()> {
        let first = self.ahead.tokens.len() - self.ahead.drafts;
        let draft_tokens: Vec<TokenId> = self.ahead.tokens[first..][..drafts].to_vec();
        self.ahead.forget_drafts();
        let known = self.tokens.len();
        let answered = match (result, &self.choice) {
            (RowResult::Tokens(tokens), TokenChoice::Engine(_)) => tokens,
            (RowResult::Logits(rows), TokenChoice::Host(_)) => {
                let sampled = self.sample_each(&rows, &draft_tokens);
                self.tokens.truncate(known);
                self.drawn.truncate(known - self.prompt_length);
                sampled?
            }
            _ => return Err(not_verified()),
        };
        let right =
            draft_tokens.iter().zip(&answered).take_while(|(draft, token)| **draft == token.token).count();
        if answered.len() <= right {
            return Err(not_verified());
        }
        self.ahead.drafted += drafts;
        self.ahead.accepted += right;
        self.valid += right;
        self.ahead.ready = answered.into_iter().take(right + 1).collect();
        Ok(())
    }

    /// What the host chooses by each row of logits, up to the first that is not the draft token in its place.
    /// Adds the tokens to the text, from where the caller takes them again.
    fn sample_each(&mut self, rows: &[Vec<f32>], draft_tokens: &[TokenId]) -> Result<Vec<SampledToken>> {
        let TokenChoice::Host(sampler) = &self.choice else { return Err(not_verified()) };
        let mut sampled = Vec::with_capacity(rows.len());
        for (index, logits) in rows.iter().enumerate() {
            let context = SamplingContext {
                tokens: &self.tokens,
                prompt_length: self.prompt_length,
                mask: self.masks.get(index),
                top: self.options.top,
                drawn: &self.drawn,
            };
            let token = sampler.sample(logits, &context)?;
            let right = draft_tokens.get(index) == Some(&token.token);
            self.tokens.push(token.token);
            self.drawn.push(token.drawn_logprob.unwrap_or(token.logprob));
            sampled.push(token);
            if !right {
                break;
            }
        }
        Ok(sampled)
    }
}

fn not_verified() -> Error {
    Error::new(ErrorKind::Internal, "decode", "the engine did not return one result per draft token")
}
