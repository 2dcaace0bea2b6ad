//! Who chooses tokens: the engine, or a sampler on the host.

use crate::{Result, SampledToken, SamplingPlan, TokenId, TokenMask};

/// What a [`LogitsSampler`] knows of the sequence besides its logits.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SamplingContext<'a> {
    /// All tokens of the sequence so far.
    pub tokens: &'a [TokenId],
    /// How many of them were given and not generated.
    pub prompt_length: usize,
    /// The tokens that may be chosen; all where there is none.
    pub mask: Option<&'a TokenMask>,
    /// How many of the most likely tokens to report.
    pub top: u16,
    /// [`SampledToken::drawn_logprob`] of each generated token, oldest first.
    pub drawn: &'a [f32],
}

impl<'a> SamplingContext<'a> {
    /// After `tokens`, the first `prompt_length` of which were given; no mask, nothing to report.
    pub fn new(tokens: &'a [TokenId], prompt_length: usize) -> Self {
        Self { tokens, prompt_length, mask: None, top: 0, drawn: &[] }
    }

    /// The tokens that were generated.
    pub fn generated(&self) -> &'a [TokenId] {
        self.tokens.get(self.prompt_length..).unwrap_or_default()
    }
}

/// Draws tokens from logits on the host.
pub trait LogitsSampler: Send + Sync {
    /// The token to follow, from its logits (`[vocabulary]`) and what came before. A function of its arguments alone, so that
    /// batching, rewinding and computing anew cannot change what a sequence says.
    ///
    /// # Errors
    ///
    /// Whatever keeps it from choosing.
    fn sample(&self, logits: &[f32], context: &SamplingContext<'_>) -> Result<SampledToken>;
}

/// Who chooses the tokens of a [`Generation`](crate::Generation).
#[non_exhaustive]
pub enum TokenChoice {
    /// The engine.
    Engine(SamplingPlan),
    /// The host, from logits; needs [`Capabilities::logits`](crate::Capabilities::logits).
    Host(Box<dyn LogitsSampler>),
}
