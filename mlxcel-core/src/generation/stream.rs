//! One generation on one session, as an iterator.

use super::{FinishReason, GenerateOptions, Generation, TokenChoice};
use crate::capabilities::Capabilities;
use crate::error::Result;
use crate::sequence::SequenceId;
use crate::session::InferenceSession;
use crate::step::SampledToken;
use crate::token::TokenId;

/// A running generation: an iterator over the tokens that follow a prompt.
///
/// The first call of `next` computes the prompt. The stop token is not returned. After the end,
/// [`finish_reason`](Self::finish_reason) is set; an error ends the stream. The caller opens and closes the
/// sequence; it holds the prompt and all returned tokens except the last.
///
/// The session can be borrowed (`&mut S`, `&mut dyn InferenceSession`) or owned (`Box<dyn
/// InferenceSession>`).
#[derive(Debug)]
pub struct TokenStream<S> {
    session: S,
    sequence: SequenceId,
    generation: Generation,
    failed: bool,
}

impl<S: InferenceSession> TokenStream<S> {
    /// Starts a generation after `prompt` on an open sequence of `session`.
    ///
    /// To continue a sequence that holds earlier tokens with sampling on the host, use
    /// [`resume`](Self::resume), because penalties depend on them.
    ///
    /// # Errors
    ///
    /// The errors of [`Generation::new`]; [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) for a sequence
    /// that is not open.
    pub fn new(
        session: S,
        sequence: SequenceId,
        prompt: &[TokenId],
        options: GenerateOptions,
        choice: TokenChoice,
    ) -> Result<Self> {
        Self::resume(session, sequence, &[], prompt, options, choice)
    }

    /// As [`new`](Self::new), on a sequence that already holds the tokens of `history`.
    ///
    /// # Errors
    ///
    /// The errors of [`new`](Self::new).
    pub fn resume(
        session: S,
        sequence: SequenceId,
        history: &[TokenId],
        prompt: &[TokenId],
        options: GenerateOptions,
        choice: TokenChoice,
    ) -> Result<Self> {
        let capacity = session.state(sequence)?.capacity;
        if let TokenChoice::Host(_) = choice {
            Capabilities::require(session.capabilities().logits, "generate", "logits")?;
        }
        let generation = Generation::resume(history, prompt, capacity, options, choice)?;
        Ok(Self { session, sequence, generation, failed: false })
    }

    /// Why the generation ended; `None` while it is running or if it failed.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.generation.finish_reason()
    }

    /// The tokens generated so far.
    pub fn generated(&self) -> &[TokenId] {
        self.generation.generated()
    }

    /// The session.
    pub fn session(&self) -> &S {
        &self.session
    }

    /// Ends the stream and returns the session.
    pub fn into_session(self) -> S {
        self.session
    }
}

impl<S: InferenceSession> Iterator for TokenStream<S> {
    type Item = Result<SampledToken>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let item = self.generation.advance(&mut self.session, self.sequence).transpose();
        self.failed = matches!(item, Some(Err(_)));
        item
    }
}
