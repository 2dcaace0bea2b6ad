//! The caller's handle of a request.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::{Context, Poll};

use mlxcel_core::{CancelToken, FinishReason, Result, SampledToken, TokenId, TokenLogprob};

use super::Life;
use super::channel::{Event, Receiver};
use crate::{AnswerParts, Completion, ReasoningSplitter, TextGeneration, Usage};

/// A request run by an [`Engine`](super::Engine), as an iterator over pieces of text.
///
/// It yields the same pieces as a [`TextStream`](crate::TextStream). The engine computes up to
/// [`EngineOptions::unread_tokens`](super::EngineOptions::unread_tokens) tokens ahead of the reader and then pauses the
/// request. Dropping the stream cancels the request. The stream can be sent to another thread and may outlive its
/// [`Engine`](super::Engine).
///
/// With the feature `async` it is a [`Stream`](https://docs.rs/futures-core/latest/futures_core/stream/trait.Stream.html) of the
/// same pieces, under any executor.
pub struct RequestStream {
    receiver: Receiver,
    number: u64,
    cancel: CancelToken,
    splitter: ReasoningSplitter,
    prompt_tokens: usize,
    /// Text that is whole and not given yet.
    text: String,
    tokens: Vec<TokenId>,
    logprobs: Vec<f32>,
    top_logprobs: Vec<Vec<TokenLogprob>>,
    usage: Usage,
    finish: Option<FinishReason>,
    stop_string: Option<String>,
    ended: bool,
    /// Keeps the engine's thread. Dropped after the receiver, so that the thread sees that there is no reader.
    _life: Arc<Life>,
}

/// What a request passes to its stream before it starts.
pub(super) struct About {
    cancel: CancelToken,
    splitter: ReasoningSplitter,
    usage: Usage,
}

impl About {
    pub(super) fn of(generation: &TextGeneration) -> Result<Self> {
        let (cancel, usage) = (generation.cancel_token(), generation.usage());
        Ok(Self { cancel, splitter: generation.splitter()?, usage })
    }
}

impl RequestStream {
    pub(super) fn new(receiver: Receiver, number: u64, about: About, life: Arc<Life>) -> Self {
        let About { cancel, splitter, usage } = about;
        Self {
            receiver,
            number,
            cancel,
            splitter,
            prompt_tokens: usage.prompt_tokens,
            text: String::new(),
            tokens: Vec::new(),
            logprobs: Vec::new(),
            top_logprobs: Vec::new(),
            usage,
            finish: None,
            stop_string: None,
            ended: false,
            _life: life,
        }
    }

    /// Waits for the next token; `None` at the end.
    pub fn next_token(&mut self) -> Option<Result<SampledToken>> {
        if self.ended {
            return None;
        }
        let event = self.receiver.receive();
        self.take_in(event)
    }

    /// As [`next_token`](Self::next_token), for async tasks: wakes the task when a token or the end is available.
    pub fn poll_token(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<SampledToken>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        self.receiver.poll(context).map(|event| self.take_in(event))
    }

    /// As the iterator's `next`, for async tasks: wakes the task when a piece or the end is available.
    pub fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<String>>> {
        loop {
            if !self.text.is_empty() {
                return Poll::Ready(Some(Ok(self.take_text())));
            }
            match self.poll_token(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                // The withheld text becomes whole by the end.
                Poll::Ready(None) if self.text.is_empty() => return Poll::Ready(None),
                Poll::Ready(None) => {}
            }
        }
    }

    /// Takes the complete characters that were not returned yet; may be empty.
    pub fn take_text(&mut self) -> String {
        std::mem::take(&mut self.text)
    }

    /// Waits for the end. [`Completion::text`](crate::Completion::text) is the text that was not taken before.
    ///
    /// # Errors
    ///
    /// The error that ended the request.
    pub fn complete(self) -> Result<Completion> {
        self.complete_with(|_| ControlFlow::Continue(()))
    }

    /// As [`complete`](Self::complete), but calls `on_piece` with each piece of text. If it returns `Break`, the
    /// request ends with [`FinishReason::Cancelled`].
    ///
    /// # Errors
    ///
    /// The error that ended the request.
    pub fn complete_with(mut self, mut on_piece: impl FnMut(&str) -> ControlFlow<()>) -> Result<Completion> {
        let mut text = String::new();
        for piece in &mut self {
            let piece = piece?;
            text.push_str(&piece);
            if on_piece(&piece).is_break() {
                break;
            }
        }
        Ok(self.into_completion(text))
    }

    /// What it gave so far, as a whole; with `text` as its text.
    fn into_completion(self, text: String) -> Completion {
        Completion {
            text,
            tokens: self.tokens,
            logprobs: self.logprobs,
            top_logprobs: self.top_logprobs,
            finish_reason: self.finish.unwrap_or(FinishReason::Cancelled),
            stop_string: self.stop_string,
            usage: self.usage,
        }
    }

    /// Splits the text into reasoning and answer, as [`TextStream::parts`](crate::TextStream::parts).
    pub fn parts(self) -> AnswerParts<Self> {
        let splitter = self.splitter();
        AnswerParts::new(self, splitter)
    }

    /// A splitter of its text, from the beginning, into reasoning and answer, for async tasks that read the pieces
    /// themselves.
    pub fn splitter(&self) -> ReasoningSplitter {
        self.splitter.clone()
    }

    /// The number of the request, counted from 0 per engine.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The tokens read so far, without the stop token but including the tokens of a stop string.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// The natural log probability of each token read, by the model's own distribution.
    pub fn logprobs(&self) -> &[f32] {
        &self.logprobs
    }

    /// The most likely tokens at each position, [`Options::top_logprobs`](crate::Options::top_logprobs) many.
    pub fn top_logprobs(&self) -> &[Vec<TokenLogprob>] {
        &self.top_logprobs
    }

    /// The number of prompt tokens.
    pub fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// Why it ended; `None` before the end was read or if it failed.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.finish
    }

    /// The stop string that ended it, if any.
    pub fn stop_string(&self) -> Option<&str> {
        self.stop_string.as_deref()
    }

    /// Tokens and time spent, up to the last token read.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Cancels the request from any thread, waiting or running, at the next token or prompt chunk. It is the token in
    /// the options, if they have one.
    pub fn cancel_token(&self) -> CancelToken {
        self.cancel.clone()
    }

    fn take_in(&mut self, event: Option<Event>) -> Option<Result<SampledToken>> {
        match event {
            Some(Event::Item(item)) => {
                self.text.push_str(&item.text);
                self.tokens.push(item.token.token);
                self.logprobs.push(item.token.logprob);
                self.top_logprobs.push(item.token.top.clone());
                self.usage = item.usage;
                Some(Ok(item.token))
            }
            Some(Event::End(end)) => {
                self.ended = true;
                self.text.push_str(&end.text);
                self.stop_string = end.stop_string;
                self.usage = end.usage.unwrap_or(self.usage);
                match end.reason {
                    Ok(reason) => {
                        self.finish = Some(reason);
                        None
                    }
                    Err(error) => Some(Err(error)),
                }
            }
            None => {
                self.ended = true;
                None
            }
        }
    }
}

impl Iterator for RequestStream {
    type Item = Result<String>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if !self.text.is_empty() {
                return Some(Ok(self.take_text()));
            }
            match self.next_token() {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Some(Err(error)),
                // The withheld text becomes whole by the end.
                None if self.text.is_empty() => return None,
                None => {}
            }
        }
    }
}

#[cfg(feature = "async")]
impl futures_core::Stream for RequestStream {
    type Item = Result<String>;

    fn poll_next(self: std::pin::Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_piece(context)
    }
}

impl fmt::Debug for RequestStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestStream")
            .field("number", &self.number)
            .field("tokens", &self.tokens.len())
            .field("finish_reason", &self.finish)
            .finish_non_exhaustive()
    }
}
