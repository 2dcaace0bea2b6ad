//! Answers that come piece by piece, as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::future::try_join_all;
use futures_util::stream::{self, Stream, StreamExt};
use mlxcel_session::{FinishReason, RequestStream, Usage};
use serde_json::Value;

use crate::failure::ApiError;
use crate::served::ServedModel;
use crate::spans::ServedStream;

/// What one sort of answer looks like, piece by piece.
pub(crate) trait Pieces: Send + 'static {
    /// Whether `[DONE]` follows the last event.
    const DONE: bool = true;

    /// What comes first.
    fn begin(&mut self, app: &ServedModel) -> Vec<Value>;
    /// The event with `text`, the newest text of `stream`.
    fn piece(
        &mut self,
        app: &ServedModel,
        stream: &RequestStream,
        text: &str,
    ) -> Result<Vec<Value>, ApiError>;
    /// What ends it.
    fn end(&mut self, app: &ServedModel, stream: &RequestStream) -> Vec<Value>;

    /// The event of an error.
    fn error(error: &ApiError) -> Value {
        error.json()
    }
}

/// The whole texts of answers. They are read at the same time, since an answer pauses when many of its tokens
/// are unread.
///
/// # Errors
/// The first error of any of them.
pub(crate) async fn whole_texts(streams: &mut [ServedStream]) -> Result<Vec<String>, ApiError> {
    try_join_all(streams.iter_mut().map(whole_text)).await
}

/// The whole text of an answer.
pub(crate) async fn whole_text(stream: &mut ServedStream) -> Result<String, ApiError> {
    let mut text = String::new();
    while let Some(piece) = stream.next().await {
        text.push_str(&piece?);
    }
    check_end(stream).map(|()| text)
}

/// Whether an answer came to an end of its own.
fn check_end(stream: &RequestStream) -> Result<(), ApiError> {
    match stream.finish_reason() {
        Some(reason @ (FinishReason::TimeLimit | FinishReason::Cancelled)) => Err(ApiError::cut(reason)),
        _ => Ok(()),
    }
}

/// Sends what `answers` say as they say it; `usage` makes the last message before `[DONE]` of the usages of
/// all answers, if one is wanted.
///
/// The status line and the headers wait for the first token.
///
/// # Errors
/// The error that comes before the first token: it has a status of its own, so that a router can try another
/// server.
pub(crate) async fn respond<P: Pieces>(
    app: Arc<ServedModel>,
    answers: Vec<(ServedStream, P)>,
    usage: Option<impl FnOnce(&[Usage]) -> Value + Send + 'static>,
) -> Result<Response, ApiError> {
    let (told, mut hears) = tokio::sync::mpsc::unbounded_channel();
    let choices = answers.into_iter().enumerate().map(|(index, (stream, pieces))| {
        let (app, told) = (Arc::clone(&app), told.clone());
        let state = Answer { stream, pieces, phase: Phase::Begin, ready: VecDeque::new() };
        stream::unfold(state, move |mut state| {
            let (app, told) = (Arc::clone(&app), told.clone());
            async move {
                let message = state.next(&app).await;
                if message.is_none() {
                    // The task that adds the figures up may be gone, and the answer with it.
                    let _ = told.send((index, state.stream.usage()));
                }
                message.map(|message| (message, state))
            }
        })
        .boxed()
    });
    let mut messages = stream::select_all(choices);
    drop(told);
    let first = messages.next().await.transpose()?;
    let messages = stream::iter(first.map(Ok))
        .chain(messages)
        .map(|message| message.unwrap_or_else(|error: ApiError| P::error(&error)));
    let last = stream::once(async move {
        let mut answers = Vec::new();
        while let Ok(answer) = hears.try_recv() {
            answers.push(answer);
        }
        answers.sort_by_key(|(index, _)| *index);
        let answers: Vec<_> = answers.into_iter().map(|(_, usage)| usage).collect();
        usage.map(|message| message(&answers))
    });
    Ok(events(messages.chain(last.filter_map(|message| async { message })), P::DONE))
}

/// `messages` as events; `[DONE]` follows if `done`.
pub(crate) fn events(messages: impl Stream<Item = Value> + Send + 'static, done: bool) -> Response {
    let events = messages
        .map(|message| {
            let event = Event::default().data(message.to_string());
            // Events of some APIs have a name.
            message["type"].as_str().map_or(event.clone(), |name| event.event(name))
        })
        .chain(stream::iter(done.then(|| Event::default().data("[DONE]"))));
    Sse::new(events.map(Ok::<_, Infallible>)).keep_alive(KeepAlive::default()).into_response()
}

struct Answer<P> {
    stream: ServedStream,
    pieces: P,
    phase: Phase,
    /// The messages that are to be sent.
    ready: VecDeque<Value>,
}

enum Phase {
    Begin,
    Text,
    Ended,
}

impl<P: Pieces> Answer<P> {
    /// The next message; nothing follows an error.
    async fn next(&mut self, app: &ServedModel) -> Option<Result<Value, ApiError>> {
        if matches!(self.phase, Phase::Begin) {
            // The text of this token is part of the first piece.
            match self.stream.next_token().await {
                Some(Ok(_)) => {}
                Some(Err(error)) => return self.fail(error.into()),
                None => {
                    if let Err(error) = check_end(&self.stream) {
                        return self.fail(error);
                    }
                }
            }
            self.phase = Phase::Text;
            self.ready.extend(self.pieces.begin(app));
        }
        while self.ready.is_empty() && !matches!(self.phase, Phase::Ended) {
            match self.stream.next().await {
                Some(Ok(text)) => match self.pieces.piece(app, &self.stream, &text) {
                    Ok(messages) => self.ready.extend(messages),
                    Err(error) => return self.fail(error),
                },
                Some(Err(error)) => return self.fail(error.into()),
                None => {
                    if let Err(error) = check_end(&self.stream) {
                        return self.fail(error);
                    }
                    self.phase = Phase::Ended;
                    self.ready.extend(self.pieces.end(app, &self.stream));
                }
            }
        }
        self.ready.pop_front().map(Ok)
    }

    fn fail(&mut self, error: ApiError) -> Option<Result<Value, ApiError>> {
        self.phase = Phase::Ended;
        Some(Err(error))
    }
}
