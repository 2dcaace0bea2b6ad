//! A running generation as an iterator over text.

#[cfg(feature = "schemars")]
mod typed;

use std::fmt;

use mlxcel_core::{
    CancelToken, FinishReason, InferenceSession, Result, SampledToken, SequenceId, SessionOptions,
    SessionStats, TokenId, TokenLogprob,
};

use crate::chat::Message;
use crate::generation::TextGeneration;
use crate::model::Model;
use crate::options::Options;
use crate::prompt::Prompt;
use crate::reasoning::{AnswerParts, ReasoningSplitter};
use crate::usage::Usage;

/// The complete result of a generation.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Completion {
    /// The text, without the stop token or stop string.
    pub text: String,
    /// The tokens, without the stop token.
    pub tokens: Vec<TokenId>,
    /// The natural log probability of each token.
    pub logprobs: Vec<f32>,
    /// The most likely tokens at each position, [`Options::top_logprobs`](crate::Options::top_logprobs)
    /// many.
    pub top_logprobs: Vec<Vec<TokenLogprob>>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// The stop string that ended it, if any.
    pub stop_string: Option<String>,
    /// Tokens and time spent.
    pub usage: Usage,
}

/// What a stream has yielded so far.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Text that is whole and not taken yet.
    pub(crate) text: String,
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) logprobs: Vec<f32>,
    pub(crate) top_logprobs: Vec<Vec<TokenLogprob>>,
    pub(crate) usage: Usage,
    pub(crate) finish: Option<FinishReason>,
    pub(crate) stop_string: Option<String>,
    pub(crate) cancel: CancelToken,
}

impl Progress {
    /// Adds a token.
    pub(crate) fn add(&mut self, token: &SampledToken) {
        self.tokens.push(token.token);
        self.logprobs.push(token.logprob);
        self.top_logprobs.push(token.top.clone());
    }

    /// The text that was not taken yet; `None` without any.
    pub(crate) fn piece(&mut self) -> Option<String> {
        Some(std::mem::take(&mut self.text)).filter(|text| !text.is_empty())
    }

    /// All of it, with `text` as the whole text.
    pub(crate) fn complete(&mut self, text: String) -> Completion {
        let all = std::mem::take(self);
        Completion {
            text,
            tokens: all.tokens,
            logprobs: all.logprobs,
            top_logprobs: all.top_logprobs,
            // A generation without an error ends with a reason, and one that is left early was stopped by its
            // caller.
            finish_reason: all.finish.unwrap_or(FinishReason::Cancelled),
            stop_string: all.stop_string,
            usage: all.usage,
        }
    }
}

/// The methods of a stream that has a [`Progress`] and `next_token`.
macro_rules! reads_progress {
    ($stream:ty) => {
        impl $stream {
            /// Takes the complete characters that were not returned yet; may be empty.
            pub fn take_text(&mut self) -> String {
                std::mem::take(&mut self.progress.text)
            }

            /// Generates to the end. [`Completion::text`](crate::Completion::text) is the text that was not
            /// taken before.
            ///
            /// # Errors
            ///
            /// The error that ended the generation.
            pub fn complete(self) -> Result<crate::stream::Completion> {
                self.complete_with(|_| std::ops::ControlFlow::Continue(()))
            }

            /// As [`complete`](Self::complete), but calls `on_piece` with each piece of text. If it returns
            /// `Break`, the generation ends with [`FinishReason::Cancelled`].
            ///
            /// # Errors
            ///
            /// The errors of [`complete`](Self::complete).
            pub fn complete_with(
                mut self,
                mut on_piece: impl FnMut(&str) -> std::ops::ControlFlow<()>,
            ) -> Result<crate::stream::Completion> {
                let mut text = String::new();
                for piece in &mut self {
                    let piece = piece?;
                    text.push_str(&piece);
                    if on_piece(&piece).is_break() {
                        break;
                    }
                }
                Ok(self.progress.complete(text))
            }

            /// The tokens returned so far, without the stop token but including the tokens of a stop string.
            pub fn tokens(&self) -> &[TokenId] {
                &self.progress.tokens
            }

            /// The natural log probability of each token returned so far, by the model's own distribution.
            pub fn logprobs(&self) -> &[f32] {
                &self.progress.logprobs
            }

            /// The most likely tokens at each position,
            /// [`Options::top_logprobs`](crate::Options::top_logprobs) many.
            pub fn top_logprobs(&self) -> &[Vec<TokenLogprob>] {
                &self.progress.top_logprobs
            }

            /// The number of prompt tokens; in a conversation, including all earlier turns.
            pub fn prompt_tokens(&self) -> usize {
                self.progress.usage.prompt_tokens
            }

            /// Cancels the generation from any thread, waiting or running, at the next token or prompt chunk.
            /// It is the token in the options, if they have one.
            pub fn cancel_token(&self) -> CancelToken {
                self.progress.cancel.clone()
            }

            /// Why the generation ended; `None` while it is running or if it failed.
            pub fn finish_reason(&self) -> Option<FinishReason> {
                self.progress.finish
            }

            /// The stop string that ended it, if any.
            pub fn stop_string(&self) -> Option<&str> {
                self.progress.stop_string.as_deref()
            }

            /// Tokens and time spent, up to the last token returned.
            pub fn usage(&self) -> Usage {
                self.progress.usage
            }
        }

        impl Iterator for $stream {
            type Item = Result<String>;

            fn next(&mut self) -> Option<Self::Item> {
                while self.progress.text.is_empty() {
                    match self.next_token() {
                        Some(Ok(_)) => {}
                        Some(Err(error)) => return Some(Err(error)),
                        // The withheld text becomes whole by the end.
                        None => break,
                    }
                }
                self.progress.piece().map(Ok)
            }
        }
    };
}
pub(crate) use reads_progress;

reads_progress!(TextStream<'_>);

/// What a stream reports to its conversation while it runs.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// The tokens that were given.
    pub(crate) tokens: Vec<TokenId>,
    /// The text that was given.
    pub(crate) text: String,
}

/// A running generation: an iterator over pieces of text.
///
/// Pieces are never empty, never split a character and never contain a stop token or stop string. The first
/// call of `next` computes the prompt. During and after the iteration the stream reports
/// [`tokens`](Self::tokens), [`logprobs`](Self::logprobs), [`finish_reason`](Self::finish_reason) and
/// [`usage`](Self::usage). An error ends the stream. To stop early, drop it, or cancel its
/// [`cancel_token`](Self::cancel_token) from any thread.
///
/// To process single tokens, call [`next_token`](Self::next_token), and [`take_text`](Self::take_text) for
/// the text that the token completed. For a callback per piece, use [`complete_with`](Self::complete_with).
pub struct TextStream<'a> {
    session: Box<dyn InferenceSession + 'a>,
    sequence: SequenceId,
    generation: TextGeneration,
    record: Option<&'a mut Record>,
    /// The model whose prefix cache keeps what is computed; `None` in a conversation.
    keeper: Option<Model>,
    /// Whether the prompt is being computed.
    begun: bool,
    progress: Progress,
    ended: bool,
}

impl<'a> TextStream<'a> {
    pub(crate) fn new(
        session: Box<dyn InferenceSession + 'a>,
        sequence: SequenceId,
        generation: TextGeneration,
        record: Option<&'a mut Record>,
        keeper: Option<Model>,
    ) -> Self {
        let progress = Progress { cancel: generation.cancel_token(), ..Progress::default() };
        let (begun, ended) = (false, false);
        let mut stream = Self { session, sequence, generation, record, keeper, begun, progress, ended };
        stream.follow();
        stream
    }

    /// Takes over what the generation says of itself.
    fn follow(&mut self) {
        self.progress.usage = self.generation.usage();
        self.progress.finish = self.generation.finish_reason();
        self.progress.stop_string = self.generation.stop_string().map(str::to_owned);
    }

    /// Computes the next token; `None` at the end.
    pub fn next_token(&mut self) -> Option<Result<SampledToken>> {
        if self.ended {
            return None;
        }
        let token = self.prepare().and_then(|()| self.generation.advance(&mut *self.session, self.sequence));
        let token = token.transpose();
        let piece = self.generation.take_text();
        if let Some(record) = &mut self.record {
            record.text.push_str(&piece);
            record.tokens.extend(token.iter().flatten().map(|token| token.token));
        }
        self.progress.text.push_str(&piece);
        token.iter().flatten().for_each(|token| self.progress.add(token));
        self.follow();
        self.ended = !matches!(token, Some(Ok(_)));
        token
    }

    /// Computes the prompt to where others may continue from it, and keeps that.
    fn prepare(&mut self) -> Result<()> {
        let begun = std::mem::replace(&mut self.begun, true);
        let Some(model) = self.keeper.as_ref().filter(|_| !begun) else { return Ok(()) };
        if let Some(branch) = self.generation.branch(model, &*self.session)
            && self.generation.advance_to(&mut *self.session, self.sequence, branch)?
        {
            self.generation.keep(model, &mut *self.session, self.sequence);
        }
        Ok(())
    }

    /// Splits the text that was not taken yet into reasoning and answer. All text is the answer if the model
    /// does not mark reasoning.
    ///
    /// ```no_run
    /// use mlxcel_session::{AnswerPart, Message, Model, Options};
    ///
    /// let model = Model::open("models/qwen3-0.6b")?;
    /// for part in model.chat(&[Message::user("How many legs have two dogs?")], &Options::default())?.parts()? {
    ///     if let AnswerPart::Answer(text) = part? {
    ///         print!("{text}");
    ///     }
    /// }
    /// # Ok::<(), mlxcel_session::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Tokenizer::decode`](crate::Tokenizer::decode).
    pub fn parts(self) -> Result<AnswerParts<Self>> {
        let splitter = self.splitter()?;
        Ok(AnswerParts::new(self, splitter))
    }

    /// A splitter of its text, from the beginning, into reasoning and answer, for applications that split the
    /// pieces themselves.
    ///
    /// # Errors
    ///
    /// The errors of [`Tokenizer::decode`](crate::Tokenizer::decode).
    pub fn splitter(&self) -> Result<ReasoningSplitter> {
        self.generation.splitter()
    }

    /// Counters of the engine's session: passes, tokens, bytes of KV cache.
    pub fn stats(&self) -> SessionStats {
        self.session.stats()
    }

    /// The sequence of the session that holds the tokens.
    pub fn sequence(&self) -> SequenceId {
        self.sequence
    }
}

impl Model {
    /// Continues a text without a chat template. The tokenizer's leading special tokens (such as BOS) are
    /// added.
    ///
    /// # Errors
    ///
    /// The errors of [`stream`](Self::stream).
    pub fn generate(&self, text: &str, options: &Options) -> Result<TextStream<'static>> {
        self.stream(text, options)
    }

    /// Answers a conversation, rendered by the checkpoint's chat template.
    ///
    /// # Errors
    ///
    /// The errors of [`stream`](Self::stream).
    pub fn chat(&self, messages: &[Message], options: &Options) -> Result<TextStream<'static>> {
        self.stream(messages, options)
    }

    /// Continues a prompt of token ids. A model without a tokenizer yields no text; read its
    /// [`tokens`](TextStream::next_token).
    ///
    /// # Errors
    ///
    /// The errors of [`stream`](Self::stream).
    pub fn generate_tokens(&self, prompt: &[TokenId], options: &Options) -> Result<TextStream<'static>> {
        self.stream(prompt, options)
    }

    /// Continues a [`Prompt`] in its own session.
    ///
    /// # Errors
    ///
    /// The errors of [`generation`](Self::generation) and of
    /// [`Model::open_session`](mlxcel_core::Model::open_session).
    pub fn stream<'a>(
        &self,
        prompt: impl Into<Prompt<'a>>,
        options: &Options,
    ) -> Result<TextStream<'static>> {
        let mut generation = self.generation(prompt, options)?;
        let mut session = self.engine().open_session(&SessionOptions::default())?;
        let (sequence, known) = generation.open(self, &mut *session)?;
        generation.set_computed(known);
        Ok(TextStream::new(session, sequence, generation, None, Some(self.clone())))
    }
}

impl Drop for TextStream<'_> {
    fn drop(&mut self) {
        // Neither rejected drafts nor those that nobody took are part of the text.
        self.generation.leave();
        if let Err(error) = self.generation.rewind(&mut *self.session, self.sequence) {
            tracing::debug!(%error, "rejected draft tokens remain in a sequence");
        }
        if let Some(model) = &self.keeper {
            self.generation.keep(model, &mut *self.session, self.sequence);
        }
    }
}

impl fmt::Debug for TextStream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextStream")
            .field("sequence", &self.sequence)
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}
