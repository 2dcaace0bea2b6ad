//! Parses tool calls in streamed output.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::value::RawValue;

use super::styles::{Call, Style};
use crate::chat::{AnswerPart, ReasoningSplitter};

/// A tool call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolCall {
    /// The name of the tool, one of those offered.
    pub name: String,
    /// The arguments, a JSON object as text.
    pub arguments: String,
}

/// A part of an answer that may call tools.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ToolPart {
    /// Text outside of calls.
    Text(String),
    /// Reasoning, if the call format marks it too (gpt-oss).
    Reasoning(String),
    /// A complete call.
    Call(ToolCall),
}

/// Finds calls in streamed output, wherever the pieces end.
///
/// A call is returned when it is complete. Text that only looks like one, such as a call of an unknown tool or an
/// incomplete one, is returned as text, so that the parts are the whole answer. Create a parser with
/// [`Tools::parser`](super::Tools::parser).
#[derive(Clone, Debug)]
pub struct ToolParser {
    style: &'static Style,
    names: Arc<[String]>,
    place: Place,
    /// What is not given yet.
    held: String,
    /// Of a style whose calls are in channels.
    channels: Option<ReasoningSplitter>,
    /// The call in a channel that is being read.
    open_call: Option<(String, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Nothing came but space.
    Start,
    Text,
    /// Behind a call.
    Calls,
}

/// What the beginning of a text is.
enum Found<T> {
    /// It, and how many bytes it has.
    Whole(T, usize),
    /// It may become it.
    Begun,
    Not,
}

impl<T> Found<T> {
    /// What is found behind it, with the length of both.
    fn then<U>(self, text: &str, next: impl FnOnce(T, &str) -> Found<U>) -> Found<U> {
        match self {
            Self::Whole(found, length) => match next(found, &text[length..]) {
                Found::Whole(next, more) => Found::Whole(next, length + more),
                other => other,
            },
            Self::Begun => Found::Begun,
            Self::Not => Found::Not,
        }
    }
}

impl ToolParser {
    pub(super) fn new(
        style: &'static Style,
        names: Arc<[String]>,
        channels: Option<ReasoningSplitter>,
    ) -> Self {
        Self { style, names, place: Place::Start, held: String::new(), channels, open_call: None }
    }

    /// Adds a piece of the answer and returns the parts that are decided.
    pub fn push(&mut self, piece: &str) -> Vec<ToolPart> {
        let mut parts = Vec::new();
        if let Some(channels) = &mut self.channels {
            let read = channels.push(piece);
            read.into_iter().for_each(|part| self.take_channel(part, &mut parts));
            return parts;
        }
        self.held.push_str(piece);
        // Nothing that is held becomes whole by the middle of its JSON.
        if self.held.len() == piece.len() || !piece.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            self.read(&mut parts);
        }
        merge(parts)
    }

    /// Ends the answer and returns what was held back.
    pub fn finish(&mut self) -> Vec<ToolPart> {
        let mut parts = Vec::new();
        if let Some(channels) = &mut self.channels {
            let read = channels.finish();
            read.into_iter().for_each(|part| self.take_channel(part, &mut parts));
            self.end_channel_call(&mut parts);
            return parts;
        }
        self.read(&mut parts);
        // A call that is broken off may hold a whole one.
        while !self.held.is_empty() {
            let first = self.held.chars().next().map_or(0, char::len_utf8);
            let next =
                self.held[first..].find(self.first_of_trigger()).map_or(self.held.len(), |at| at + first);
            text(self.held.drain(..next).collect(), &mut parts);
            self.place = Place::Text;
            self.read(&mut parts);
        }
        merge(parts)
    }

    /// The character that a call begins with.
    fn first_of_trigger(&self) -> char {
        self.style.trigger().chars().next().unwrap_or('{')
    }

    fn read(&mut self, parts: &mut Vec<ToolPart>) {
        let trigger = self.style.trigger();
        loop {
            if self.place == Place::Calls {
                match self.next_call() {
                    Found::Whole(call, length) => {
                        self.held.drain(..length);
                        parts.push(ToolPart::Call(call));
                        continue;
                    }
                    Found::Begun => return,
                    _ => self.place = Place::Text,
                }
                continue;
            }
            let start = if trigger.is_empty() {
                let space = self.held.len() - self.held.trim_start().len();
                (self.place == Place::Start).then_some(space)
            } else {
                self.held.find(trigger)
            };
            let Some(start) = start else {
                let certain = self.held.len() - begun(&self.held, trigger);
                self.give_text(certain, parts);
                return;
            };
            if !trigger.is_empty() {
                self.give_text(start, parts);
            } else if start == self.held.len() {
                return;
            }
            match self.first_call() {
                Found::Whole(call, length) => {
                    self.held.drain(..length);
                    self.place = Place::Calls;
                    parts.push(ToolPart::Call(call));
                }
                Found::Begun => return,
                _ => {
                    // The mark is a part of the text.
                    let length = trigger.len().max(self.held.chars().next().map_or(0, char::len_utf8));
                    self.place = Place::Text;
                    self.give_text(length, parts);
                }
            }
        }
    }

    fn give_text(&mut self, length: usize, parts: &mut Vec<ToolPart>) {
        let given: String = self.held.drain(..length).collect();
        if !given.trim().is_empty() {
            self.place = Place::Text;
        }
        text(given, parts);
    }

    /// The call at the beginning of what is held.
    fn first_call(&self) -> Found<ToolCall> {
        eat(self.style.open, &self.held).then(&self.held, |(), rest| self.call(rest))
    }

    /// The call behind others. Their end is taken away.
    fn next_call(&mut self) -> Found<ToolCall> {
        let separated = eat(self.style.separator, &self.held);
        let next = separated.then(&self.held, |(), rest| self.call(rest));
        if !matches!(next, Found::Not) {
            return next;
        }
        match eat(self.style.close, &self.held) {
            Found::Whole((), length) => {
                self.held.drain(..length);
                Found::Not
            }
            Found::Begun => Found::Begun,
            Found::Not => Found::Not,
        }
    }

    /// The call that `text` begins with.
    fn call(&self, text: &str) -> Found<ToolCall> {
        let call = match self.style.call {
            Call::Object { before, name, arguments, after } => eat(before, text).then(text, |(), rest| {
                object(rest).then(rest, |object, rest| {
                    let Some(call) = fields(object, name, arguments) else { return Found::Not };
                    eat(after, rest).then(rest, |(), _| Found::Whole(call, 0))
                })
            }),
            Call::Named { before, between, after } => eat(before, text).then(text, |(), rest| {
                name(rest).then(rest, |name, rest| {
                    eat(between, rest).then(rest, |(), rest| {
                        object(rest).then(rest, |arguments, rest| {
                            let arguments = arguments.trim().to_owned();
                            let call = ToolCall { name: name.clone(), arguments };
                            eat(after, rest).then(rest, |(), _| Found::Whole(call, 0))
                        })
                    })
                })
            }),
            Call::Channel { .. } => Found::Not,
        };
        match call {
            Found::Whole(call, _) if !self.names.contains(&call.name) => Found::Not,
            call => call,
        }
    }

    fn take_channel(&mut self, part: AnswerPart, parts: &mut Vec<ToolPart>) {
        if let AnswerPart::Call { to, text } = part {
            match &mut self.open_call {
                Some((name, arguments)) if *name == to => arguments.push_str(&text),
                _ => {
                    self.end_channel_call(parts);
                    self.open_call = Some((to, text));
                }
            }
            return;
        }
        self.end_channel_call(parts);
        match part {
            AnswerPart::Reasoning(text) => parts.push(ToolPart::Reasoning(text)),
            AnswerPart::Answer(given) => text(given, parts),
            AnswerPart::Call { .. } => {}
        }
    }

    fn end_channel_call(&mut self, parts: &mut Vec<ToolPart>) {
        let Some((to, given)) = self.open_call.take() else { return };
        let name = to.strip_prefix("functions.").unwrap_or(&to).to_owned();
        let arguments = given.trim();
        if self.names.contains(&name) && is_object(arguments) {
            parts.push(ToolPart::Call(ToolCall { name, arguments: arguments.to_owned() }));
        } else {
            text(given, parts);
        }
    }
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

/// Whether `text` begins with `literal`, with any space in front of its characters.
fn eat(literal: &str, text: &str) -> Found<()> {
    let mut rest = text;
    for character in literal.chars().filter(|character| !character.is_whitespace()) {
        let found = rest.trim_start();
        rest = match found.strip_prefix(character) {
            Some(rest) => rest,
            None if found.is_empty() => return Found::Begun,
            None => return Found::Not,
        };
    }
    Found::Whole((), text.len() - rest.len())
}

/// The bare name at the beginning of `text`.
fn name(text: &str) -> Found<String> {
    let end = text.find(|character: char| !super::is_of_name(character));
    match end {
        Some(0) => Found::Not,
        Some(end) => Found::Whole(text[..end].to_owned(), end),
        None => Found::Begun,
    }
}

/// The JSON object at the beginning of `text`, with any space in front of it.
fn object(text: &str) -> Found<&str> {
    let rest = text.trim_start();
    if rest.is_empty() {
        return Found::Begun;
    }
    if !rest.starts_with('{') {
        return Found::Not;
    }
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for (at, byte) in rest.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => depth += 1,
            b'}' | b']' if !in_string => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            let found = &rest[..=at];
            let length = text.len() - rest.len() + at + 1;
            return if is_object(found) { Found::Whole(found, length) } else { Found::Not };
        }
    }
    Found::Begun
}

fn is_object(text: &str) -> bool {
    serde_json::from_str::<HashMap<String, &RawValue>>(text).is_ok()
}

/// The call that the fields of an object say; arguments may be written as a text that holds the object.
fn fields(object: &str, name: &str, arguments: &str) -> Option<ToolCall> {
    let fields: HashMap<String, &RawValue> = serde_json::from_str(object).ok()?;
    let name = serde_json::from_str(fields.get(name)?.get()).ok()?;
    let arguments = fields.get(arguments)?.get();
    let arguments = match serde_json::from_str::<String>(arguments) {
        Ok(text) => text,
        Err(_) => arguments.to_owned(),
    };
    is_object(&arguments).then_some(ToolCall { name, arguments })
}

/// How much of the end of `text` may be the beginning of `mark`, in bytes.
fn begun(text: &str, mark: &str) -> usize {
    let most = mark.len().saturating_sub(1).min(text.len());
    let is_begun = |length: &usize| {
        let at = text.len() - length;
        text.is_char_boundary(at) && mark.starts_with(&text[at..])
    };
    (1..=most).rev().find(is_begun).unwrap_or(0)
}
