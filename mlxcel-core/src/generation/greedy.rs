//! Generation in one call.

use std::ops::ControlFlow;

use super::{FinishReason, GenerateOptions, Generated, TokenChoice, TokenStream};
use crate::error::Result;
use crate::plan::SamplingPlan;
use crate::session::InferenceSession;
use crate::step::SampledToken;
use crate::token::TokenId;

/// Generation in one call, for every session.
pub trait GenerateExt: InferenceSession {
    /// Greedy continuation of `prompt` on a new sequence, which is closed afterwards.
    ///
    /// # Errors
    ///
    /// The errors of [`TokenStream::new`], [`InferenceSession::open`] and [`InferenceSession::step`].
    fn generate_greedy(&mut self, prompt: &[TokenId], options: &GenerateOptions) -> Result<Generated> {
        self.generate_streaming_greedy(prompt, options, &mut |_| ControlFlow::Continue(()))
    }

    /// As [`generate_greedy`](Self::generate_greedy), but calls `on_token` with each token. If it returns
    /// `Break`, the generation ends with [`FinishReason::Cancelled`].
    ///
    /// # Errors
    ///
    /// The errors of [`generate_greedy`](Self::generate_greedy).
    fn generate_streaming_greedy(
        &mut self,
        prompt: &[TokenId],
        options: &GenerateOptions,
        on_token: &mut dyn FnMut(&SampledToken) -> ControlFlow<()>,
    ) -> Result<Generated> {
        let sequence = self.open()?;
        let mut run = || -> Result<Generated> {
            let choice = TokenChoice::Engine(SamplingPlan::greedy());
            let mut stream = TokenStream::new(&mut *self, sequence, prompt, options.clone(), choice)?;
            let mut generation = Generated {
                tokens: Vec::new(),
                logprobs: Vec::new(),
                finish_reason: FinishReason::Cancelled,
            };
            for token in &mut stream {
                let token = token?;
                generation.tokens.push(token.token);
                generation.logprobs.push(token.logprob);
                if on_token(&token).is_break() {
                    return Ok(generation);
                }
            }
            generation.finish_reason = stream.finish_reason().unwrap_or(FinishReason::Cancelled);
            Ok(generation)
        };
        let result = run();
        // The sequence was opened here, so closing fails only if the engine is broken; the first error is
        // returned.
        let closed = self.close(sequence);
        let generation = result?;
        closed?;
        Ok(generation)
    }
}

impl<S: InferenceSession + ?Sized> GenerateExt for S {}
