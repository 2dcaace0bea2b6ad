//! An answer in its parts: reasoning, text and tool calls.

use std::ops::Deref;

use futures_util::future::try_join_all;
use mlxcel_session::{
    AnswerPart, FinishReason, ReasoningSplitter, RequestStream, ToolCall, ToolParser, ToolPart, Tools,
};

use crate::failure::ApiError;
use crate::newlines::Newlines;
use crate::served::ServedModel;
use crate::spans::ServedStream;
use crate::usage::AnswerUsage;

/// Which parts the answers of a request may have.
pub(crate) struct AnswerFormat {
    pub(crate) tools: Option<Tools>,
    /// Whether a format is given, which leaves no room for reasoning.
    pub(crate) has_format: bool,
}

/// An answer on its way, whose parts are separated while it streams.
///
/// Newlines around the reasoning belong to the model's format, and are left out.
pub(crate) struct Answer {
    stream: ServedStream,
    splitter: Splitter,
    newlines: Newlines,
    has_calls: bool,
    has_ended: bool,
    /// How many tokens made the parts so far, and how many of them those of the reasoning.
    read_tokens: usize,
    reasoning_tokens: usize,
}

enum Splitter {
    /// All is text.
    Plain,
    /// No tools are offered.
    Reasoning(ReasoningSplitter),
    Tools(Box<ToolParser>),
}

impl Answer {
    pub(crate) fn of_chat(format: &AnswerFormat, stream: ServedStream) -> Self {
        let splitter = match &format.tools {
            Some(tools) => Splitter::Tools(Box::new(tools.parser_after(stream.splitter()))),
            // The prompt may open the tag of the reasoning, which the format then replaces.
            None if format.has_format => Splitter::Reasoning(ReasoningSplitter::plain()),
            None => Splitter::Reasoning(stream.splitter()),
        };
        Self::new(splitter, Newlines::new(format.tools.is_some()), stream)
    }

    /// The continuation of a prompt: one text, as the model writes it.
    pub(crate) fn of_prompt(stream: ServedStream) -> Self {
        Self::new(Splitter::Plain, Newlines::new(false), stream)
    }

    fn new(splitter: Splitter, newlines: Newlines, stream: ServedStream) -> Self {
        let (has_calls, has_ended) = (false, false);
        Self { stream, splitter, newlines, has_calls, has_ended, read_tokens: 0, reasoning_tokens: 0 }
    }

    /// Waits for the first token, which is part of the first parts.
    pub(crate) async fn begin(&mut self) -> Result<(), ApiError> {
        match self.stream.next_token().await {
            Some(token) => token.map(drop).map_err(ApiError::from),
            None => self.check_end(),
        }
    }

    /// The parts that the next tokens decide; `None` at the end. Nothing follows an error.
    pub(crate) async fn next(&mut self, app: &ServedModel) -> Option<Result<Vec<ToolPart>, ApiError>> {
        if self.has_ended {
            return None;
        }
        let parts = match self.stream.next().await {
            Some(Ok(text)) => self.splitter.push(&text),
            Some(Err(error)) => {
                self.has_ended = true;
                return Some(Err(error.into()));
            }
            None => {
                self.has_ended = true;
                if let Err(error) = self.check_end() {
                    return Some(Err(error));
                }
                self.splitter.end()
            }
        };
        self.count(&parts);
        let mut finished: Vec<_> = parts.into_iter().flat_map(|part| self.finish(app, part)).collect();
        if self.has_ended {
            finished.extend(self.newlines.end().map(ToolPart::Text));
        }
        Some(Ok(finished))
    }

    pub(crate) async fn whole(&mut self, app: &ServedModel) -> Result<Vec<ToolPart>, ApiError> {
        let mut whole = Vec::new();
        while let Some(parts) = self.next(app).await {
            whole.extend(parts?);
        }
        Ok(whole)
    }

    /// All parts of each answer. They are read at the same time, since an answer pauses when many of its
    /// tokens are unread.
    ///
    /// # Errors
    /// The first error of any of them.
    pub(crate) async fn all_whole(
        answers: &mut [Self],
        app: &ServedModel,
    ) -> Result<Vec<Vec<ToolPart>>, ApiError> {
        try_join_all(answers.iter_mut().map(|answer| answer.whole(app))).await
    }

    pub(crate) fn has_calls(&self) -> bool {
        self.has_calls
    }

    /// OpenAI's word for why it ended.
    pub(crate) fn end_reason(&self) -> &'static str {
        match self.stream.finish_reason() {
            Some(FinishReason::Stop | FinishReason::StopString) if self.has_calls => "tool_calls",
            Some(FinishReason::Stop | FinishReason::StopString) => "stop",
            // It has no words for limits of time and for being cancelled.
            _ => "length",
        }
    }

    pub(crate) fn usage(&self) -> AnswerUsage {
        let reasoning_tokens = match self.splitter {
            Splitter::Plain => None,
            _ => Some(self.reasoning_tokens),
        };
        AnswerUsage { usage: self.stream.usage(), reasoning_tokens }
    }

    /// Whether it came to an end of its own.
    fn check_end(&self) -> Result<(), ApiError> {
        match self.stream.finish_reason() {
            Some(reason @ (FinishReason::TimeLimit | FinishReason::Cancelled)) => Err(ApiError::cut(reason)),
            _ => Ok(()),
        }
    }

    /// Counts the tokens that made `parts`. Marks of the format count as what follows them.
    fn count(&mut self, parts: &[ToolPart]) {
        if parts.is_empty() {
            return;
        }
        let tokens = self.stream.usage().generated_tokens.max(self.read_tokens);
        if parts.iter().any(|part| matches!(part, ToolPart::Reasoning(_))) {
            self.reasoning_tokens += tokens - self.read_tokens;
        }
        self.read_tokens = tokens;
    }

    /// The part as clients get it; none if nothing remains of it.
    fn finish(&mut self, app: &ServedModel, part: ToolPart) -> Option<ToolPart> {
        match part {
            ToolPart::Reasoning(text) => self.newlines.reasoning(&text).map(ToolPart::Reasoning),
            ToolPart::Text(text) => self.newlines.answer(&text).map(ToolPart::Text),
            ToolPart::Call(call) => {
                self.has_calls = true;
                self.newlines.call();
                // Those of the parser repeat between requests.
                let id = app.server.ids.next();
                Some(ToolPart::Call(ToolCall::new(id, call.name, call.arguments)))
            }
            _ => None,
        }
    }
}

impl Deref for Answer {
    type Target = RequestStream;

    fn deref(&self) -> &RequestStream {
        &self.stream
    }
}

impl Splitter {
    fn push(&mut self, text: &str) -> Vec<ToolPart> {
        match self {
            Self::Plain => vec![ToolPart::Text(text.to_owned())],
            Self::Reasoning(splitter) => splitter.push(text).into_iter().map(without_tools).collect(),
            Self::Tools(parser) => parser.push(text),
        }
    }

    /// The parts that the end decides.
    fn end(&mut self) -> Vec<ToolPart> {
        match self {
            Self::Plain => Vec::new(),
            Self::Reasoning(splitter) => splitter.finish().into_iter().map(without_tools).collect(),
            Self::Tools(parser) => parser.finish(),
        }
    }
}

/// A part of an answer without tools: a call is text.
fn without_tools(part: AnswerPart) -> ToolPart {
    match part {
        AnswerPart::Reasoning(text) => ToolPart::Reasoning(text),
        AnswerPart::Answer(text) | AnswerPart::Call { text, .. } => ToolPart::Text(text),
        _ => ToolPart::Text(String::new()),
    }
}
