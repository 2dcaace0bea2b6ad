//! A running generation, as text.

use std::time::{Duration, Instant};

use mlxcel_core::{
    FinishReason, InferenceSession, Result, SampledToken, SequenceId, SessionStats, TokenId, TokenStream,
};

use crate::Detokenizer;

/// Where the time of a generation went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timings {
    /// Computing the prompt, up to the first token.
    pub prefill: Duration,
    /// Computing the tokens after the first.
    pub decode: Duration,
    /// Compiling programs that were needed for the first time; not part of the others.
    pub compile: Duration,
}

/// What a generation gave, all of it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Completion {
    /// The text, without the stop token.
    pub text: String,
    /// The tokens, without the stop token.
    pub tokens: Vec<TokenId>,
    /// The natural log probability of each token.
    pub logprobs: Vec<f32>,
    /// How many tokens the prompt had.
    pub prompt_tokens: usize,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Where the time went.
    pub timings: Timings,
}

/// What a stream tells its conversation while it runs.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// The tokens that were given.
    pub(crate) tokens: Vec<TokenId>,
    /// The text that was given.
    pub(crate) text: String,
}

/// The parts that a [`TextStream`] is made of.
pub(crate) struct Parts<'a> {
    pub(crate) stream: TokenStream<Box<dyn InferenceSession + 'a>>,
    pub(crate) sequence: SequenceId,
    /// None for a model without tokenizer: there are tokens and no text.
    pub(crate) detokenizer: Option<Detokenizer>,
    /// Tokens that have no text.
    pub(crate) silent: Vec<TokenId>,
    pub(crate) prompt_tokens: usize,
    pub(crate) record: Option<&'a mut Record>,
}

/// A running generation: an iterator over pieces of text.
///
/// A piece is never empty and never splits a character; the stop token is in none. The prompt is computed when the first piece
/// is asked for. During and after the iteration the stream tells what came: [`tokens`](Self::tokens),
/// [`logprobs`](Self::logprobs), [`finish_reason`](Self::finish_reason), [`timings`](Self::timings). After an error there is
/// nothing more. To stop early, drop it.
///
/// A caller who wants each token asks [`next_token`](Self::next_token) instead, and [`take_text`](Self::take_text) for the
/// text that became whole by it.
pub struct TextStream<'a> {
    parts: Parts<'a>,
    /// Text that is whole and not given yet.
    text: String,
    logprobs: Vec<f32>,
    timings: Timings,
    ended: bool,
}

impl<'a> TextStream<'a> {
    pub(crate) fn new(parts: Parts<'a>) -> Self {
        Self { parts, text: String::new(), logprobs: Vec::new(), timings: Timings::default(), ended: false }
    }

    /// The next token; none at the end.
    pub fn next_token(&mut self) -> Option<Result<SampledToken>> {
        if self.ended {
            return None;
        }
        let compiled_before = self.stats().compile_time;
        let start = Instant::now();
        let item = self.parts.stream.next();
        let elapsed = start.elapsed();
        let compile = self.stats().compile_time.saturating_sub(compiled_before);
        self.timings.compile += compile;
        let phase =
            if self.logprobs.is_empty() { &mut self.timings.prefill } else { &mut self.timings.decode };
        *phase += elapsed.saturating_sub(compile);
        let item = match item {
            Some(Ok(token)) => Some(self.take_in(&token).map(|()| token)),
            Some(Err(error)) => Some(Err(error)),
            None => self.finish_text().err().map(Err),
        };
        self.ended = !matches!(item, Some(Ok(_)));
        item
    }

    /// Takes the text that is whole and was not given yet; it may be empty.
    pub fn take_text(&mut self) -> String {
        std::mem::take(&mut self.text)
    }

    /// Generates to the end and gives everything. The text is what was not yet taken.
    ///
    /// # Errors
    ///
    /// That of the token that failed.
    pub fn complete(mut self) -> Result<Completion> {
        let mut text = self.take_text();
        for piece in &mut self {
            text.push_str(&piece?);
        }
        Ok(Completion {
            text,
            tokens: self.tokens().to_vec(),
            prompt_tokens: self.prompt_tokens(),
            // A stream without an error ends with a reason.
            finish_reason: self.finish_reason().unwrap_or(FinishReason::Cancelled),
            timings: self.timings,
            logprobs: self.logprobs,
        })
    }

    /// The tokens generated so far, without the stop token.
    pub fn tokens(&self) -> &[TokenId] {
        self.parts.stream.generated()
    }

    /// The natural log probability of each token generated so far, by the model's own distribution.
    pub fn logprobs(&self) -> &[f32] {
        &self.logprobs
    }

    /// How many tokens the prompt has; in a conversation, with all that was said before.
    pub fn prompt_tokens(&self) -> usize {
        self.parts.prompt_tokens
    }

    /// Why the generation ended; none while it runs or where it failed.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.parts.stream.finish_reason()
    }

    /// Where the time went so far.
    pub fn timings(&self) -> Timings {
        self.timings
    }

    /// What the engine's session has done so far: passes, tokens, bytes of KV cache.
    pub fn stats(&self) -> SessionStats {
        self.parts.stream.session().stats()
    }

    /// The sequence of the session that the tokens are on.
    pub fn sequence(&self) -> SequenceId {
        self.parts.sequence
    }

    fn take_in(&mut self, token: &SampledToken) -> Result<()> {
        self.logprobs.push(token.logprob);
        if let Some(record) = &mut self.parts.record {
            record.tokens.push(token.token);
        }
        let silent = self.parts.silent.contains(&token.token);
        let piece = match &mut self.parts.detokenizer {
            Some(detokenizer) if !silent => detokenizer.push(token.token)?,
            _ => None,
        };
        self.say(piece);
        Ok(())
    }

    fn finish_text(&mut self) -> Result<()> {
        let piece = match &mut self.parts.detokenizer {
            Some(detokenizer) => detokenizer.finish()?,
            None => None,
        };
        self.say(piece);
        Ok(())
    }

    fn say(&mut self, piece: Option<String>) {
        let Some(piece) = piece else { return };
        if let Some(record) = &mut self.parts.record {
            record.text.push_str(&piece);
        }
        self.text.push_str(&piece);
    }
}

impl Iterator for TextStream<'_> {
    type Item = Result<String>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if !self.text.is_empty() {
                return Some(Ok(self.take_text()));
            }
            match self.next_token() {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Some(Err(error)),
                // What was held back becomes whole by the end.
                None if self.text.is_empty() => return None,
                None => {}
            }
        }
    }
}
