//! Parses tool calls in streamed output.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::attempt::{Arguments, Attempt, FoundCall, Miss};
use super::json::is_object;
use super::{elements, values};
use crate::chat::style::{Call, Style};
use crate::chat::{AnswerPart, ToolCall};
use crate::reasoning::{ReasoningSplitter, first_mark};

/// A part of an answer that may call tools.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ToolPart {
    /// Text outside of calls.
    Text(String),
    /// Reasoning: of [`Tools::parser`](super::Tools::parser) only if the call format marks it too (gpt-oss), of
    /// [`Tools::parser_after`](super::Tools::parser_after) what its splitter finds.
    Reasoning(String),
    /// A complete call.
    Call(ToolCall),
}

/// Finds calls in streamed output, wherever the pieces end.
///
/// A call is returned when it is complete. Text that only looks like one, such as a call of an unknown tool
/// or an incomplete one, is returned as text, so that the parts are the whole answer. Create a parser with
/// [`Tools::parser`](super::Tools::parser).
///
/// Its work grows with the length of the answer, whatever the answer says.
#[derive(Clone, Debug)]
pub struct ToolParser {
    style: &'static Style,
    names: Arc<[String]>,
    /// The tools, in OpenAI's format.
    definitions: Arc<[Value]>,
    place: Place,
    /// What is not given yet.
    held: String,
    /// The call that `held` may begin with, as far as it was read.
    attempt: Option<Attempt>,
    /// How many bytes were looked at.
    #[cfg(test)]
    work: usize,
    /// Separates reasoning, and calls in channels.
    splitter: ReasoningSplitter,
    /// The call in a channel that is being read.
    open_call: Option<(String, String)>,
    /// How many calls were found by this parser and by others of the same tools.
    calls: Arc<AtomicU64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Nothing came but space.
    Start,
    Text,
    /// Behind a call.
    Calls,
}

impl ToolParser {
    pub(super) fn new(
        style: &'static Style,
        names: Arc<[String]>,
        definitions: Arc<[Value]>,
        splitter: ReasoningSplitter,
        calls: Arc<AtomicU64>,
    ) -> Self {
        Self {
            style,
            names,
            definitions,
            place: Place::Start,
            held: String::new(),
            attempt: None,
            #[cfg(test)]
            work: 0,
            splitter,
            open_call: None,
            calls,
        }
    }

    /// Adds a piece of the answer and returns the parts that are decided.
    pub fn push(&mut self, piece: &str) -> Vec<ToolPart> {
        let mut parts = Vec::new();
        self.splitter.push(piece).into_iter().for_each(|part| self.take(part, &mut parts));
        parts
    }

    /// Ends the answer and returns the withheld text.
    pub fn finish(&mut self) -> Vec<ToolPart> {
        let mut parts = Vec::new();
        self.splitter.finish().into_iter().for_each(|part| self.take(part, &mut parts));
        self.end_channel_call(&mut parts);
        parts.extend(self.read(true));
        parts
    }

    /// Reads on in what is held. At the answer's end a call that is broken off is none, though one may begin
    /// within it.
    fn read(&mut self, is_end: bool) -> Vec<ToolPart> {
        let mut held = std::mem::take(&mut self.held);
        let mut parts = Vec::new();
        let mut given = 0;
        while let Some(mut attempt) = self.begin(&held, &mut given, is_end, &mut parts) {
            let before = attempt.at();
            let read = attempt.read(&held[given..], &self.names);
            self.look(attempt.at().saturating_sub(before));
            match read {
                Ok(call) => {
                    given += attempt.at();
                    self.place = Place::Calls;
                    parts.extend(call.map(|call| self.found(call)));
                    if attempt.ends_calls() {
                        self.place = Place::Text;
                    }
                }
                Err(Miss::Begun) if !is_end => {
                    self.attempt = Some(attempt);
                    break;
                }
                Err(Miss::Begun) if attempt.is_whole() => {
                    given += attempt.at();
                    self.place = Place::Calls;
                    parts.extend(attempt.into_call().map(|call| self.found(call)));
                }
                Err(_) => self.refuse(&attempt, &held, &mut given, &mut parts),
            }
        }
        held.drain(..given);
        self.held = held;
        merge(parts)
    }

    /// The attempt to continue with, after all text before it was returned; `None` if no call can start yet.
    fn begin(
        &mut self,
        held: &str,
        given: &mut usize,
        is_end: bool,
        parts: &mut Vec<ToolPart>,
    ) -> Option<Attempt> {
        if let Some(attempt) = self.attempt.take() {
            return Some(attempt);
        }
        if self.place == Place::Calls {
            return Some(Attempt::next(self.style));
        }
        let rest = &held[*given..];
        let found = match self.style.trigger() {
            // The call is the whole answer.
            "" if self.place == Place::Start && !rest.is_empty() => Ok((0, "")),
            _ => first_mark(rest, self.style.triggers()),
        };
        self.look(found.map_or(rest.len(), |(start, _)| start));
        let certain = match found {
            Ok((start, _)) => start,
            Err(_) if is_end => rest.len(),
            Err(certain) => certain,
        };
        self.give_text(&rest[..certain], parts);
        *given += certain;
        found.is_ok().then(|| Attempt::first(self.style))
    }

    /// The candidate is not a call.
    fn refuse(&mut self, attempt: &Attempt, held: &str, given: &mut usize, parts: &mut Vec<ToolPart>) {
        if let Some(close) = attempt.otherwise(self.style) {
            self.attempt = Some(close);
        } else if self.place == Place::Calls {
            self.place = Place::Text;
        } else {
            // The mark is a part of the text.
            let rest = &held[*given..];
            let trigger = self.style.triggers().find(|trigger| rest.starts_with(trigger));
            let least = trigger.map_or(0, str::len).max(attempt.passed());
            let length = least.max(rest.chars().next().map_or(0, char::len_utf8));
            self.place = Place::Text;
            self.give_text(&rest[..length], parts);
            *given += length;
        }
    }

    fn give_text(&mut self, given: &str, parts: &mut Vec<ToolPart>) {
        if self.place == Place::Start && !given.trim().is_empty() {
            self.place = Place::Text;
        }
        text(given.to_owned(), parts);
    }

    /// Counts what is looked at.
    #[cfg_attr(not(test), allow(clippy::unused_self, reason = "tests alone count"))]
    fn look(&mut self, _bytes: usize) {
        #[cfg(test)]
        {
            self.work += _bytes;
        }
    }

    fn take(&mut self, part: AnswerPart, parts: &mut Vec<ToolPart>) {
        match (&mut self.open_call, &part) {
            (Some((name, arguments)), AnswerPart::Call { to, text }) if name == to && !text.is_empty() => {
                arguments.push_str(text);
                return;
            }
            _ => self.end_channel_call(parts),
        }
        match part {
            AnswerPart::Call { to, text } => self.open_call = Some((to, text)),
            AnswerPart::Reasoning(text) => parts.push(ToolPart::Reasoning(text)),
            // Calls of this style are in channels of their own.
            AnswerPart::Answer(given) if matches!(self.style.call, Call::Channel { .. }) => {
                text(given, parts)
            }
            AnswerPart::Answer(given) => {
                self.held.push_str(&given);
                parts.extend(self.read(false));
            }
        }
    }

    fn found(&self, call: FoundCall) -> ToolPart {
        let parameters = |name: &str| {
            let mut functions = self.definitions.iter().map(|definition| &definition["function"]);
            let function = functions.find(|function| function["name"] == name);
            function.map_or(&Value::Null, |function| &function["parameters"])
        };
        let arguments = match call.arguments {
            Arguments::Object(object) => object,
            Arguments::Fields(fields) => values::object(&fields, parameters(&call.name)),
            Arguments::Elements(elements) => {
                let parameters = parameters(&call.name);
                elements::object(&elements, parameters, parameters)
            }
        };
        self.call(call.id, call.name, arguments)
    }

    fn call(&self, own_id: Option<String>, name: String, arguments: String) -> ToolPart {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        let id = own_id.unwrap_or_else(|| id(number, &name, &arguments));
        ToolPart::Call(ToolCall { id, name, arguments })
    }

    fn end_channel_call(&mut self, parts: &mut Vec<ToolPart>) {
        let Some((to, given)) = self.open_call.take() else { return };
        let name = to.strip_prefix("functions.").unwrap_or(&to).to_owned();
        let arguments = given.trim();
        if self.names.contains(&name) && is_object(arguments) {
            parts.push(self.call(None, name, arguments.to_owned()));
        } else {
            text(given, parts);
        }
    }
}

/// The id of call number `number`: from what it says as well, so that ids repeat in a resumed conversation
/// only by chance.
fn id(number: u64, name: &str, arguments: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(number.to_le_bytes());
    hash.update(name);
    hash.update([0]);
    hash.update(arguments);
    hash.finalize()
        .iter()
        .take(9)
        .map(|byte| char::from(b"0123456789abcdefghijklmnopqrstuv"[usize::from(byte % 32)]))
        .collect()
}

fn text(text: String, parts: &mut Vec<ToolPart>) {
    if !text.is_empty() {
        parts.push(ToolPart::Text(text));
    }
}

/// Makes one text of those in a row.
fn merge(parts: Vec<ToolPart>) -> Vec<ToolPart> {
    let mut merged: Vec<ToolPart> = Vec::with_capacity(parts.len());
    for part in parts {
        match (merged.last_mut(), part) {
            (Some(ToolPart::Text(last)), ToolPart::Text(next)) => last.push_str(&next),
            (_, part) => merged.push(part),
        }
    }
    merged
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::chat::styles::STYLES;

    /// What the work is for a text in pieces of `size` bytes, with what is found.
    fn work(style: &'static Style, text: &str, size: usize) -> (usize, Vec<ToolPart>) {
        let names = ["now".to_owned()];
        let mut parser =
            ToolParser::new(style, names.into(), Arc::default(), ReasoningSplitter::plain(), Arc::default());
        let mut parts = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let mut length = size.min(rest.len());
            while !rest.is_char_boundary(length) {
                length += 1;
            }
            parts.extend(parser.push(&rest[..length]));
            rest = &rest[length..];
        }
        parts.extend(parser.finish());
        (parser.work, merge(parts))
    }

    #[test]
    fn parsing_work_is_linear_in_the_answers_length() {
        for style in STYLES.into_iter().filter(|style| style.name != "gpt-oss") {
            let trigger = if style.trigger().is_empty() { "{" } else { style.trigger() };
            let begin = format!("{trigger}{}", if trigger == "{" { "" } else { "[{" });
            for repeated in [
                trigger.to_owned(),
                format!("{begin}\""),
                format!("{begin}\"a\":\""),
                format!("{begin}\"\\\""),
                format!("{begin}{{\"a\":["),
                format!("{trigger} \n"),
                " ".to_owned(),
                "{".to_owned(),
                format!("{trigger}now"),
                format!("{trigger}<function=now><parameter=a>"),
                format!("{trigger}now<arg_key>a</arg_key><arg_value>"),
                format!("{trigger}<invoke name=\"now\"><parameter name=\"a\">b</parameter>"),
                format!("{trigger}{{\"name\": \"now\", \"arguments\": {{}}}}, "),
                format!("{trigger}call:now{{a:<|\"|>"),
                format!("{trigger}call:now{{a:<escape>b<escape>"),
                format!("{trigger}[now(a='"),
                format!("{trigger}now(a=[1, "),
            ] {
                for (first, size) in [("", 1), ("", 7), ("", usize::MAX), (begin.as_str(), 3)] {
                    let text = format!("{first}{}", repeated.repeat(4_000 / repeated.len()));
                    let (work, _) = work(style, &text, size);
                    // The beginning of a mark is compared again with each piece.
                    let most = (8 + trigger.len()) * text.len();
                    assert!(work <= most, "{}: {work} for {} of {repeated:?}", style.name, text.len());
                }
            }
        }
    }

    #[test]
    fn a_streamed_tool_call_is_parsed_once() {
        let style = STYLES.into_iter().find(|style| style.name == "hermes").unwrap();
        let long = "x, {\\\"y\\\"} ".repeat(1_000);
        let call = format!(r#"<tool_call>{{"name": "now", "arguments": {{"text": "{long}"}}}}</tool_call>"#);
        for size in [1, 5, usize::MAX] {
            let (work, parts) = work(style, &call, size);
            assert!(matches!(&parts[..], [ToolPart::Call(_)]), "{parts:?}");
            assert!(work <= 2 * call.len(), "{work} for {}", call.len());
        }
    }
}
