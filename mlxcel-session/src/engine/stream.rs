//! The caller's handle of a request.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use mlxcel_core::{CancelToken, FinishReason, Result, SampledToken, TokenId, TokenLogprob};

use super::channel::{Event, Receiver};
use super::{AsyncRequestStream, Life};
use crate::reasoning::{AnswerParts, ReasoningSplitter};
use crate::stream::{Completion, Progress, reads_progress};
use crate::usage::Usage;

/// A request run by an [`Engine`](super::Engine), as an iterator over pieces of text.
///
/// It yields the same pieces as a [`TextStream`](crate::TextStream). The engine computes up to
/// [`EngineOptions::unread_tokens`](super::EngineOptions::unread_tokens) tokens ahead of the reader and then
/// pauses the request. Dropping the stream cancels the request. The stream can be sent to another thread and
/// may outlive its [`Engine`](super::Engine).
///
/// Reading it blocks the thread. In async tasks, read [`into_async`](Self::into_async) instead.
pub struct RequestStream {
    receiver: Receiver,
    number: u64,
    splitter: ReasoningSplitter,
    progress: Progress,
    /// Keeps the engine's thread. Dropped after the receiver, so that the thread sees that there is no
    /// reader.
    _life: Arc<Life>,
}

reads_progress!(RequestStream);

impl RequestStream {
    /// The stream of the request `number`, which has not begun, with these properties.
    pub(super) fn new(
        receiver: Receiver,
        number: u64,
        (splitter, progress): (ReasoningSplitter, Progress),
        life: Arc<Life>,
    ) -> Self {
        Self { receiver, number, splitter, progress, _life: life }
    }

    /// Waits for the next token; `None` at the end.
    pub fn next_token(&mut self) -> Option<Result<SampledToken>> {
        let event = self.receiver.receive();
        self.take_in(event)
    }

    /// The same request for async tasks, under any executor: reading it never blocks the thread.
    pub fn into_async(self) -> AsyncRequestStream {
        AsyncRequestStream(self)
    }

    /// As [`next_token`](Self::next_token), but wakes the task when a token or the end is available.
    pub(super) fn poll_token(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<SampledToken>>> {
        self.receiver.poll(context).map(|event| self.take_in(event))
    }

    /// As the iterator's `next`, but wakes the task when a piece or the end is available.
    pub(super) fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<String>>> {
        while self.progress.text.is_empty() {
            match ready!(self.poll_token(context)) {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                // The withheld text becomes whole by the end.
                None => break,
            }
        }
        Poll::Ready(self.progress.piece().map(Ok))
    }

    /// The complete result, of which `text` was taken piece by piece.
    pub(super) fn into_completion(mut self, text: String) -> Completion {
        self.progress.complete(text)
    }

    /// Splits the text into reasoning and answer, as [`TextStream::parts`](crate::TextStream::parts).
    pub fn parts(self) -> AnswerParts<Self> {
        let splitter = self.splitter();
        AnswerParts::new(self, splitter)
    }

    /// A splitter of its text, from the beginning, into reasoning and answer, for applications that split the
    /// pieces themselves.
    pub fn splitter(&self) -> ReasoningSplitter {
        self.splitter.clone()
    }

    /// The number of the request, counted from 0 per engine.
    pub fn number(&self) -> u64 {
        self.number
    }

    fn take_in(&mut self, event: Option<Event>) -> Option<Result<SampledToken>> {
        match event? {
            Event::Item(item) => {
                self.progress.text.push_str(&item.text);
                self.progress.add(&item.token);
                self.progress.usage = item.usage;
                Some(Ok(item.token))
            }
            Event::End(end) => {
                self.progress.text.push_str(&end.text);
                self.progress.stop_string = end.stop_string;
                self.progress.usage = end.usage.unwrap_or(self.progress.usage);
                self.progress.finish = end.reason.as_ref().ok().copied();
                end.reason.err().map(Err)
            }
        }
    }
}

impl fmt::Debug for RequestStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestStream")
            .field("number", &self.number)
            .field("tokens", &self.progress.tokens.len())
            .field("finish_reason", &self.progress.finish)
            .finish_non_exhaustive()
    }
}
