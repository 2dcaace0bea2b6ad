//! One generation on one session, as an iterator.

use super::{GenerateOptions, Generation, TokenChoice};
use crate::{Capabilities, FinishReason, InferenceSession, Result, SampledToken, SequenceId, TokenId};

/// A running generation: an iterator over the tokens that follow a prompt.
///
/// The prompt is computed when the first token is asked for. The stop token is not given. After the end,
/// [`finish_reason`](Self::finish_reason) tells why; after an error there are no further tokens. The sequence is the
/// caller's: it is neither opened nor closed here, and holds the prompt and the given tokens but the last.
///
/// The session is borrowed (`&mut S`, `&mut dyn InferenceSession`) or owned (`Box<dyn InferenceSession>`), as the caller
/// likes.
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
    /// A sequence that holds earlier tokens is continued by [`resume`](Self::resume) where the host chooses tokens: it
    /// looks back at them.
    ///
    /// # Errors
    ///
    /// Those of [`Generation::new`]; [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) for a sequence that is not open.
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
    /// Those of [`new`](Self::new).
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

    /// Why the generation ended; none while it runs or where it failed.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.generation.finish_reason()
    }

    /// The tokens generated so far.
    pub fn generated(&self) -> &[TokenId] {
        self.generation.generated()
    }

    /// The session that computes.
    pub fn session(&self) -> &S {
        &self.session
    }

    /// Gives the session back; nothing more is generated.
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
