//! An answer in its parts: reasoning, text and tool calls.

use mlxcel_session::{
    AnswerPart, FinishReason, ReasoningSplitter, RequestStream, ToolCall, ToolParser, ToolPart, Tools,
};

use crate::fields::finish_reason;
use crate::served::ServedModel;

/// Which parts the answers of a request may have.
pub(crate) struct AnswerFormat {
    /// The tools that are offered.
    pub(crate) tools: Option<Tools>,
    /// Whether a format is given, which leaves no room for reasoning.
    pub(crate) has_format: bool,
}

/// Separates the parts of an answer while it streams.
///
/// Newlines around the reasoning belong to the model's format, and are left out.
pub(crate) struct AnswerReader {
    splitter: Splitter,
    newlines: Newlines,
    has_calls: bool,
}

enum Splitter {
    /// No tools are offered.
    Reasoning(ReasoningSplitter),
    Tools(Box<ToolParser>),
}

impl AnswerReader {
    /// Of the answer `stream`.
    pub(crate) fn new(format: &AnswerFormat, stream: &RequestStream) -> Self {
        let splitter = match &format.tools {
            Some(tools) => Splitter::Tools(Box::new(tools.parser_after(stream.splitter()))),
            // The prompt may open the tag of the reasoning, which the format then replaces.
            None if format.has_format => Splitter::Reasoning(ReasoningSplitter::plain()),
            None => Splitter::Reasoning(stream.splitter()),
        };
        Self { splitter, newlines: Newlines::default(), has_calls: false }
    }

    /// The parts that `text` decides.
    pub(crate) fn push(&mut self, app: &ServedModel, text: &str) -> Vec<ToolPart> {
        let parts = match &mut self.splitter {
            Splitter::Reasoning(splitter) => splitter.push(text).into_iter().map(without_tools).collect(),
            Splitter::Tools(parser) => parser.push(text),
        };
        self.finished(app, parts)
    }

    /// The parts that the end decides.
    pub(crate) fn end(&mut self, app: &ServedModel) -> Vec<ToolPart> {
        let parts = match &mut self.splitter {
            Splitter::Reasoning(splitter) => splitter.finish().into_iter().map(without_tools).collect(),
            Splitter::Tools(parser) => parser.finish(),
        };
        self.finished(app, parts)
    }

    /// All parts of an answer that is complete.
    pub(crate) fn whole(&mut self, app: &ServedModel, text: &str) -> Vec<ToolPart> {
        let mut parts = self.push(app, text);
        parts.extend(self.end(app));
        parts
    }

    /// Whether it calls tools.
    pub(crate) fn has_calls(&self) -> bool {
        self.has_calls
    }

    /// OpenAI's word for why the answer ended.
    pub(crate) fn finish_reason(&self, reason: Option<FinishReason>) -> &'static str {
        match finish_reason(reason) {
            "stop" if self.has_calls => "tool_calls",
            reason => reason,
        }
    }

    fn finished(&mut self, app: &ServedModel, parts: Vec<ToolPart>) -> Vec<ToolPart> {
        parts.into_iter().filter_map(|part| self.finish(app, part)).collect()
    }

    /// The part as clients get it; none if nothing remains of it.
    fn finish(&mut self, app: &ServedModel, part: ToolPart) -> Option<ToolPart> {
        match part {
            ToolPart::Reasoning(text) => self.newlines.reasoning(&text).map(ToolPart::Reasoning),
            ToolPart::Text(text) => self.newlines.answer(text).map(ToolPart::Text),
            ToolPart::Call(call) => {
                self.has_calls = true;
                // Those of the parser repeat between requests.
                let id = app.server.ids.next();
                Some(ToolPart::Call(ToolCall::new(id, call.name, call.arguments)))
            }
            _ => None,
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

/// Leaves out the newlines around reasoning.
#[derive(Default)]
struct Newlines {
    /// Whether reasoning has begun.
    has_begun: bool,
    /// The newlines that may be the last ones of the reasoning.
    held: String,
    /// Whether only reasoning and newlines came.
    is_before_answer: bool,
}

impl Newlines {
    fn reasoning(&mut self, text: &str) -> Option<String> {
        self.is_before_answer = true;
        let text = if self.has_begun { text } else { text.trim_start_matches('\n') };
        let kept = text.trim_end_matches('\n');
        if kept.is_empty() {
            self.held.push_str(text);
            return None;
        }
        self.has_begun = true;
        let given = format!("{}{kept}", self.held);
        self.held.clear();
        self.held.push_str(&text[kept.len()..]);
        Some(given)
    }

    fn answer(&mut self, text: String) -> Option<String> {
        let given = if self.is_before_answer { text.trim_start_matches('\n').to_owned() } else { text };
        if given.is_empty() {
            return None;
        }
        self.is_before_answer = false;
        Some(given)
    }
}
