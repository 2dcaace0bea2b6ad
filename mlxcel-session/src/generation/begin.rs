//! How generations of a model begin, and what they take from its prefix cache and leave there.

#[cfg(doc)]
use mlxcel_core::ErrorKind;
use mlxcel_core::{InferenceSession, Result, SequenceId, StateIdentity};

use super::TextGeneration;
use crate::model::Model;
use crate::options::Options;
use crate::prompt::Prompt;

impl Model {
    /// A generation for applications that drive sessions themselves.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] for text without a tokenizer or messages without a chat template,
    /// [`ErrorKind::InvalidInput`] for an empty prompt, a token outside the vocabulary, an empty stop string
    /// or a sampling parameter out of range, [`ErrorKind::CapacityExceeded`] for a prompt beyond the context,
    /// [`ErrorKind::Unsupported`] for a sampling parameter that neither the engine nor the host can apply,
    /// [`ErrorKind::Cancelled`] if the options' cancel token was already cancelled, and the errors of
    /// [`Tokenizer::encode_chat`](crate::Tokenizer::encode_chat).
    pub fn generation<'a>(&self, prompt: impl Into<Prompt<'a>>, options: &Options) -> Result<TextGeneration> {
        let deadline = options.deadline()?;
        let (tokens, detokenizer) = prompt.into().encode(self, options)?;
        TextGeneration::new(self, &tokens, options, deadline, detokenizer)
    }
}

impl TextGeneration {
    /// Opens its sequence with what is known of its tokens, and returns how many these are. The last token is
    /// never among them, since what follows it is wanted.
    pub(crate) fn open(
        &self,
        model: &Model,
        session: &mut dyn InferenceSession,
    ) -> Result<(SequenceId, usize)> {
        match model.prefix_cache() {
            Some(cache) => {
                cache.open_sequence(model.info(), session, &self.sequence, self.generation.tokens())
            }
            None => Ok((session.open_with(&self.sequence)?, 0)),
        }
    }

    /// Up to where its prompt is to be computed in one go, for what the sequence has then to be
    /// [kept](Self::keep); `None` if it has that already.
    pub(crate) fn branch(&self, model: &Model, session: &dyn InferenceSession) -> Option<usize> {
        let (cache, rewind) = (model.prefix_cache()?, session.capabilities().rewind);
        let identity = StateIdentity::of_sequence(model.info(), &self.sequence);
        let branch = cache.branch(&identity, self.generation.tokens(), rewind);
        branch.filter(|&branch| branch > self.generation.computed())
    }

    /// Keeps a copy of what `sequence` holds for others, if there is a cache for it.
    pub(crate) fn keep(&self, model: &Model, session: &mut dyn InferenceSession, sequence: SequenceId) {
        let Some(cache) = model.prefix_cache() else { return };
        let held = &self.generation.tokens()[..self.generation.computed()];
        if let Err(error) = cache.keep(model.info(), session, sequence, &self.sequence, held) {
            // Others compute it again.
            tracing::debug!(%error, "a prefix was not stored");
        }
    }
}
