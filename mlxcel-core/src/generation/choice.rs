//! Where tokens are sampled: by the engine, or by a sampler on the host.

use crate::error::Result;
use crate::plan::SamplingPlan;
use crate::sampling::TokenMask;
use crate::step::SampledToken;
use crate::token::TokenId;

/// The context of a [`LogitsSampler`]: what it gets besides the logits.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SamplingContext<'a> {
    /// All tokens of the sequence so far.
    pub tokens: &'a [TokenId],
    /// How many of them are the prompt and not generated.
    pub prompt_length: usize,
    /// The allowed tokens; `None` allows all.
    pub mask: Option<&'a TokenMask>,
    /// How many of the most likely tokens to report.
    pub top: u16,
    /// [`SampledToken::drawn_logprob`] of each generated token, oldest first.
    pub drawn: &'a [f32],
}

impl<'a> SamplingContext<'a> {
    /// A context after `tokens`, the first `prompt_length` of which are the prompt, without a mask or
    /// reported tokens.
    pub fn new(tokens: &'a [TokenId], prompt_length: usize) -> Self {
        Self { tokens, prompt_length, mask: None, top: 0, drawn: &[] }
    }

    /// The generated tokens.
    pub fn generated(&self) -> &'a [TokenId] {
        self.tokens.get(self.prompt_length..).unwrap_or_default()
    }
}

/// Samples tokens from logits on the host.
pub trait LogitsSampler: Send + Sync {
    /// Samples the next token from its logits (`[vocabulary]`) and the context. Must be a pure function of
    /// its arguments, so that batching, rewinding and recomputing cannot change the generated text.
    ///
    /// # Errors
    ///
    /// Any error; the generation fails with it.
    fn sample(&self, logits: &[f32], context: &SamplingContext<'_>) -> Result<SampledToken>;
}

/// Where the tokens of a [`Generation`](crate::Generation) are sampled.
#[non_exhaustive]
pub enum TokenChoice {
    /// The engine.
    Engine(SamplingPlan),
    /// The host, from logits; needs [`Capabilities::logits`](crate::Capabilities::logits).
    Host(Box<dyn LogitsSampler>),
}
