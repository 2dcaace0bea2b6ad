//! A request of an engine, as its caller holds it.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::{Context, Poll};

use mlxcel_core::{CancelToken, FinishReason, Result, SampledToken, TokenId, TokenLogprob};

use super::Life;
use super::channel::{Event, Receiver};
use crate::{AnswerParts, Completion, ReasoningSplitter, TextGeneration, Usage};

/// A request that an [`Engine`](super::Engine) runs: an iterator over pieces of text.
///
/// It is what [`TextStream`](crate::TextStream) is to a session of one's own, and gives the same pieces. The engine computes ahead of the
/// reader by as many tokens as [`EngineOptions::unread_tokens`](super::EngineOptions::unread_tokens) says, and then pauses the request
/// until some are read. Dropped, the request is cancelled. It may move to another thread, and outlive the
/// [`Engine`](super::Engine) that it came from.
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
    /// Keeps the engine's thread. Dropped after the receiver, so that the thread knows that nobody reads.
    _life: Arc<Life>,
}

/// What a request tells its stream before it is handed over.
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

    /// Waits for the next token; none at the end.
    pub fn next_token(&mut self) -> Option<Result<SampledToken>> {
        if self.ended {
            return None;
        }
        let event = self.receiver.receive();
        self.take_in(event)
    }

    /// As [`next_token`](Self::next_token), for a task: it is woken when there is something to ask for.
    pub fn poll_token(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<SampledToken>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        self.receiver.poll(context).map(|event| self.take_in(event))
    }

    /// As the iterator's `next`, for a task: it is woken when there is something to ask for.
    pub fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<String>>> {
        loop {
            if !self.text.is_empty() {
                return Poll::Ready(Some(Ok(self.take_text())));
            }
            match self.poll_token(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                // What was held back becomes whole by the end.
                Poll::Ready(None) if self.text.is_empty() => return Poll::Ready(None),
                Poll::Ready(None) => {}
            }
        }
    }

    /// Takes the text that is whole and was not given yet; it may be empty.
    pub fn take_text(&mut self) -> String {
        std::mem::take(&mut self.text)
    }

    /// Waits for the end and gives everything. The text is what was not yet taken.
    ///
    /// # Errors
    ///
    /// That which ended the request.
    pub fn complete(self) -> Result<Completion> {
        self.complete_with(|_| ControlFlow::Continue(()))
    }

    /// As [`complete`](Self::complete), and hands each piece of text to `on_piece` as it comes; the request ends as
    /// [`FinishReason::Cancelled`] where that breaks.
    ///
    /// # Errors
    ///
    /// That which ended the request.
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

    /// Tells reasoning apart from the answer, as [`TextStream::parts`](crate::TextStream::parts).
    pub fn parts(self) -> AnswerParts<Self> {
        let splitter = self.splitter();
        AnswerParts::new(self, splitter)
    }

    /// What splits its text, from the beginning, into reasoning and answer; for tasks, which read pieces by themselves.
    pub fn splitter(&self) -> ReasoningSplitter {
        self.splitter.clone()
    }

    /// The number of the request: those of an engine count up from 0.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The tokens that were read so far, without the stop token, and with those of a stop string.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// The natural log probability of each token that was read, by the model's own distribution.
    pub fn logprobs(&self) -> &[f32] {
        &self.logprobs
    }

    /// The most likely tokens at each place, as many as [`Options::top_logprobs`](crate::Options::top_logprobs) asks for.
    pub fn top_logprobs(&self) -> &[Vec<TokenLogprob>] {
        &self.top_logprobs
    }

    /// How many tokens the prompt has.
    pub fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// Why it ended; none before the end was read, and where it failed.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.finish
    }

    /// The stop string that ended it.
    pub fn stop_string(&self) -> Option<&str> {
        self.stop_string.as_deref()
    }

    /// What it took, up to the token that was read last.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// What cancels it, from any thread, waiting or running: at the next token, or the next chunk of the prompt. It is the one of the
    /// options, where they have one.
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
                // What was held back becomes whole by the end.
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
