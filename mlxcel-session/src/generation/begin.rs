//! Generations of a model.

use mlxcel_core::Result;

use super::TextGeneration;
use crate::model::Model;
use crate::options::Options;
use crate::prompt::Prompt;

impl Model {
    /// A generation for applications that drive sessions themselves.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) for text without a tokenizer or messages without a
    /// chat template, [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for an empty prompt, a
    /// token outside the vocabulary, an empty stop string or a sampling parameter out of range,
    /// [`ErrorKind::CapacityExceeded`](crate::ErrorKind::CapacityExceeded) for a prompt beyond the context,
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for a sampling parameter that neither the
    /// engine nor the host can apply, [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled) if the options'
    /// cancel token was already cancelled, and the errors of
    /// [`Tokenizer::encode_chat`](crate::Tokenizer::encode_chat).
    pub fn generation<'a>(&self, prompt: impl Into<Prompt<'a>>, options: &Options) -> Result<TextGeneration> {
        let deadline = options.deadline()?;
        let (tokens, detokenizer) = prompt.into().encode(self, options)?;
        TextGeneration::new(self, &tokens, options, deadline, detokenizer)
    }
}
