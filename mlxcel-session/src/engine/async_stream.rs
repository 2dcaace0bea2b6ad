//! The handle of a request for async tasks.

use std::future::poll_fn;
use std::ops::Deref;
use std::task::{Context, Poll, ready};

use mlxcel_core::{Result, SampledToken};

use super::RequestStream;
use crate::chat::AnswerPart;
use crate::reasoning::AnswerParts;
use crate::stream::Completion;

/// A request run by an [`Engine`](super::Engine), for async tasks under any executor.
///
/// Created by [`RequestStream::into_async`], of which it yields the same pieces of text. Everything that a
/// [`RequestStream`] reports (tokens, usage, finish reason, cancel token) can be read here as well. Dropping
/// it cancels the request; dropping the future of one of its methods loses no token.
///
/// With the feature `async` it is a
/// [`Stream`](https://docs.rs/futures-core/latest/futures_core/stream/trait.Stream.html) of pieces, for the combinators
/// of the crate `futures` and for web frameworks.
///
/// ```no_run
/// use mlxcel_session::{Engine, Options};
///
/// async fn tell(engine: &Engine) -> mlxcel_session::Result<()> {
///     let mut story = engine.generate("Once upon a time", &Options::new(100))?.into_async();
///     while let Some(piece) = story.next().await {
///         print!("{}", piece?);
///     }
///     println!(" [{} tokens]", story.tokens().len());
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct AsyncRequestStream(pub(super) RequestStream);

impl AsyncRequestStream {
    /// The next piece of text; `None` at the end.
    pub async fn next(&mut self) -> Option<Result<String>> {
        poll_fn(|context| self.poll_piece(context)).await
    }

    /// The next token; `None` at the end.
    pub async fn next_token(&mut self) -> Option<Result<SampledToken>> {
        poll_fn(|context| self.poll_token(context)).await
    }

    /// Generates to the end. [`Completion::text`] is the text that was not read before.
    ///
    /// # Errors
    ///
    /// The error that ended the request.
    pub async fn complete(mut self) -> Result<Completion> {
        let mut text = String::new();
        while let Some(piece) = self.next().await {
            text.push_str(&piece?);
        }
        Ok(self.0.into_completion(text))
    }

    /// Takes the complete characters that were not returned yet, such as those that the last
    /// [`next_token`](Self::next_token) completed; may be empty.
    pub fn take_text(&mut self) -> String {
        self.0.take_text()
    }

    /// As [`next`](Self::next), for futures written by hand: wakes the task when a piece or the end is
    /// available.
    pub fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<String>>> {
        self.0.poll_piece(context)
    }

    /// As [`next_token`](Self::next_token), for futures written by hand: wakes the task when a token or the
    /// end is available.
    pub fn poll_token(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<SampledToken>>> {
        self.0.poll_token(context)
    }

    /// Splits the text into reasoning and answer, as [`TextStream::parts`](crate::TextStream::parts).
    pub fn parts(self) -> AnswerParts<Self> {
        let splitter = self.splitter();
        AnswerParts::new(self, splitter)
    }
}

/// Only for reading: a shared reference offers nothing that blocks.
impl Deref for AsyncRequestStream {
    type Target = RequestStream;

    fn deref(&self) -> &RequestStream {
        &self.0
    }
}

#[cfg(feature = "async")]
impl futures_core::Stream for AsyncRequestStream {
    type Item = Result<String>;

    fn poll_next(self: std::pin::Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_piece(context)
    }
}

impl AnswerParts<AsyncRequestStream> {
    /// The next part; `None` at the end.
    pub async fn next(&mut self) -> Option<Result<AnswerPart>> {
        poll_fn(|context| self.poll_part(context)).await
    }

    fn poll_part(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<AnswerPart>>> {
        while self.wants_piece() {
            let piece = ready!(self.stream.poll_piece(context));
            if let Err(error) = self.push(piece) {
                return Poll::Ready(Some(Err(error)));
            }
        }
        Poll::Ready(self.ready.pop_front().map(Ok))
    }
}

#[cfg(feature = "async")]
impl futures_core::Stream for AnswerParts<AsyncRequestStream> {
    type Item = Result<AnswerPart>;

    fn poll_next(self: std::pin::Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_part(context)
    }
}
