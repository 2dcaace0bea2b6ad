//! Answers that come piece by piece, as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream, StreamExt};
use mlxcel_session::ToolPart;
use serde_json::Value;

use crate::answer::Answer;
use crate::failure::ApiError;
use crate::served::ServedModel;
use crate::usage::AnswerUsage;

/// What one sort of answer looks like, piece by piece.
pub(crate) trait Pieces: Send + 'static {
    /// Whether `[DONE]` follows the last event.
    const DONE: bool = true;

    /// What comes first.
    fn begin(&mut self, app: &ServedModel, answer: &Answer) -> Vec<Value>;
    /// The events with `parts`, the newest parts of `answer`.
    fn parts(
        &mut self,
        app: &ServedModel,
        answer: &Answer,
        parts: Vec<ToolPart>,
    ) -> Result<Vec<Value>, ApiError>;
    /// What ends it.
    fn end(&mut self, app: &ServedModel, answer: &Answer) -> Vec<Value>;

    fn error(error: &ApiError) -> Value {
        error.json()
    }
}

/// Sends the only one of `answers`: as a stream if `is_stream`, else what `whole` makes of all its pieces.
pub(crate) async fn respond_alone<P: Pieces>(
    app: Arc<ServedModel>,
    answers: Vec<Answer>,
    mut pieces: P,
    is_stream: bool,
    whole: impl FnOnce(&P, &ServedModel, &Answer) -> Value,
) -> Result<Response, ApiError> {
    let Some(mut answer) = answers.into_iter().next() else {
        return Err(ApiError::invalid("", "there is no answer"));
    };
    if is_stream {
        return respond(app, vec![(answer, pieces)], None::<fn(&[AnswerUsage]) -> Value>).await;
    }
    let parts = answer.whole(&app).await?;
    pieces.parts(&app, &answer, parts)?;
    pieces.end(&app, &answer);
    Ok(Json(whole(&pieces, &app, &answer)).into_response())
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
    answers: Vec<(Answer, P)>,
    usage: Option<impl FnOnce(&[AnswerUsage]) -> Value + Send + 'static>,
) -> Result<Response, ApiError> {
    let (told, mut hears) = tokio::sync::mpsc::unbounded_channel();
    let choices = answers.into_iter().enumerate().map(|(index, (answer, pieces))| {
        let (app, told) = (Arc::clone(&app), told.clone());
        let state = Messages { answer, pieces, phase: Phase::Begin, ready: VecDeque::new() };
        stream::unfold(state, move |mut state| {
            let (app, told) = (Arc::clone(&app), told.clone());
            async move {
                let message = state.next(&app).await;
                if message.is_none() {
                    // The task that adds the figures up may be gone, and the answer with it.
                    let _ = told.send((index, state.answer.usage()));
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
            // Events of some APIs have a name, which clients that read line by line expect first.
            let event = Event::default();
            let event = match message["type"].as_str() {
                Some(name) => event.event(name),
                None => event,
            };
            event.data(message.to_string())
        })
        .chain(stream::iter(done.then(|| Event::default().data("[DONE]"))));
    Sse::new(events.map(Ok::<_, Infallible>)).keep_alive(KeepAlive::default()).into_response()
}

/// The messages of an answer.
struct Messages<P> {
    answer: Answer,
    pieces: P,
    phase: Phase,
    /// The messages that are to be sent.
    ready: VecDeque<Value>,
}

enum Phase {
    Begin,
    Parts,
    Ended,
}

impl<P: Pieces> Messages<P> {
    /// The next message; nothing follows an error.
    async fn next(&mut self, app: &ServedModel) -> Option<Result<Value, ApiError>> {
        while self.ready.is_empty() {
            match self.more(app).await {
                Ok(messages) => self.ready.extend(messages?),
                Err(error) => {
                    self.phase = Phase::Ended;
                    return Some(Err(error));
                }
            }
        }
        self.ready.pop_front().map(Ok)
    }

    /// Further messages, maybe none yet; `None` at the end.
    async fn more(&mut self, app: &ServedModel) -> Result<Option<Vec<Value>>, ApiError> {
        let Self { answer, pieces, phase, .. } = self;
        match phase {
            Phase::Begin => {
                answer.begin().await?;
                *phase = Phase::Parts;
                Ok(Some(pieces.begin(app, answer)))
            }
            Phase::Parts => match answer.next(app).await {
                Some(parts) => pieces.parts(app, answer, parts?).map(Some),
                None => {
                    *phase = Phase::Ended;
                    Ok(Some(pieces.end(app, answer)))
                }
            },
            Phase::Ended => Ok(None),
        }
    }
}
