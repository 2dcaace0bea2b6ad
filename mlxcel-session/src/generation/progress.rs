//! What a generation has made so far.

use mlxcel_core::{CancelToken, FinishReason, Generation, Result, TokenId};

use super::TextGeneration;
use crate::detokenize::Detokenizer;
use crate::reasoning::ReasoningSplitter;
use crate::usage::Usage;

impl TextGeneration {
    /// The underlying token generation: the tokens, and how many are not computed yet.
    pub fn tokens(&self) -> &Generation {
        &self.generation
    }

    /// The tokens generated so far, without the stop token but including the tokens of a stop string.
    pub fn generated(&self) -> &[TokenId] {
        self.generation.generated()
    }

    /// Takes the complete characters that were not taken yet; may be empty.
    pub fn take_text(&mut self) -> String {
        std::mem::take(&mut self.text)
    }

    /// Tokens and time spent so far.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Why it ended; `None` while it is running.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        match self.stops.matched() {
            Some(_) => Some(FinishReason::StopString),
            None => self.generation.finish_reason(),
        }
    }

    /// The stop string that ended it, if any.
    pub fn stop_string(&self) -> Option<&str> {
        self.stops.matched()
    }

    /// A splitter of its text into reasoning and answer, starting at the beginning of the text. All text is
    /// the answer if the model does not mark reasoning.
    ///
    /// # Errors
    ///
    /// The errors of [`Tokenizer::decode`](crate::Tokenizer::decode).
    pub fn splitter(&self) -> Result<ReasoningSplitter> {
        let tokenizer = self.detokenizer.as_ref().map(Detokenizer::tokenizer);
        let format = tokenizer.and_then(|tokenizer| Some((tokenizer, tokenizer.reasoning()?)));
        let Some((tokenizer, format)) = format else { return Ok(ReasoningSplitter::plain()) };
        let prompt = &self.generation.tokens()[..self.generation.prompt_length()];
        format.splitter_after(tokenizer, prompt)
    }

    /// Ends it as cancelled, unless it has ended: accepted draft tokens that were not
    /// [taken](Self::next_ready) are not part of its text then, and are [rewound](Self::rewind).
    pub(crate) fn leave(&mut self) {
        self.generation.end(FinishReason::Cancelled);
    }

    /// Cancels the generation from any thread.
    pub fn cancel_token(&self) -> CancelToken {
        self.cancel.clone()
    }
}
