//! One tool call that is being read, piece by piece: each byte is looked at once.

use std::collections::HashMap;
use std::ops::Range;

use serde_json::value::RawValue;

use super::{LONGEST_NAME, is_of_name};
use crate::chat::styles::{Call, Style};

/// The deepest nesting of arguments.
const DEEPEST: usize = 128;

/// What the text of an attempt is.
pub(super) enum Found<T> {
    Whole(T),
    /// It may become it.
    Begun,
    Not,
}

/// A call that was read.
#[derive(Clone, Debug)]
pub(super) struct FoundCall {
    pub(super) name: String,
    pub(super) arguments: String,
}

/// What is expected of a text from its beginning on, and how much of it came.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    kind: Kind,
    /// The last one first.
    expected: Vec<Expected>,
    /// How many bytes were read.
    at: usize,
    name: String,
    /// Where the object is.
    object: Range<usize>,
    call: Option<FoundCall>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    First,
    /// Behind other calls.
    Next,
    /// What ends all of them.
    Close,
}

#[derive(Clone, Debug)]
enum Expected {
    /// This text, with any space before its characters.
    Literal(&'static str),
    /// A bare name.
    Name,
    /// A JSON object, with any space in front.
    Object(Json),
    /// That the object has the name and the arguments in these fields.
    Fields(&'static str, &'static str),
    /// That the object is the arguments.
    Arguments,
}

impl Attempt {
    pub(super) fn first(style: &Style) -> Self {
        Self::new(Kind::First, style.open, Some(&style.call))
    }

    pub(super) fn next(style: &Style) -> Self {
        Self::new(Kind::Next, style.separator, Some(&style.call))
    }

    fn new(kind: Kind, begin: &'static str, call: Option<&Call>) -> Self {
        let mut expected = vec![Expected::Literal(begin)];
        match call {
            Some(&Call::Object { before, name, arguments, after }) => expected.extend([
                Expected::Literal(before),
                Expected::Object(Json::default()),
                Expected::Fields(name, arguments),
                Expected::Literal(after),
            ]),
            Some(&Call::Named { before, between, after }) => expected.extend([
                Expected::Literal(before),
                Expected::Name,
                Expected::Literal(between),
                Expected::Object(Json::default()),
                Expected::Arguments,
                Expected::Literal(after),
            ]),
            Some(Call::Channel { .. }) | None => {}
        }
        expected.reverse();
        Self { kind, expected, at: 0, name: String::new(), object: 0..0, call: None }
    }

    /// What to try where this is not it.
    pub(super) fn otherwise(&self, style: &Style) -> Option<Self> {
        (self.kind == Kind::Next).then(|| Self::new(Kind::Close, style.close, None))
    }

    /// Whether no call follows.
    pub(super) fn ends_calls(&self) -> bool {
        self.kind == Kind::Close
    }

    /// How many bytes were read.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Reads on in `text`, of which the bytes that were read before are the same. Found is the call, of one
    /// of `names`.
    pub(super) fn read(&mut self, text: &str, names: &[String]) -> Found<Option<FoundCall>> {
        while let Some(expected) = self.expected.last_mut() {
            let rest = &text[self.at..];
            match expected {
                Expected::Literal(literal) => {
                    *literal = literal.trim_start();
                    if let Some(wanted) = literal.chars().next() {
                        let found = rest.trim_start();
                        self.at = text.len() - found.len();
                        match found.chars().next() {
                            Some(character) if character == wanted => {
                                self.at += wanted.len_utf8();
                                *literal = &literal[wanted.len_utf8()..];
                                continue;
                            }
                            Some(_) => return Found::Not,
                            None => return Found::Begun,
                        }
                    }
                }
                Expected::Name => {
                    let end = rest.find(|character: char| !is_of_name(character));
                    let letters = &rest[..end.unwrap_or(rest.len())];
                    self.at += letters.len();
                    if self.name.len() + letters.len() > LONGEST_NAME {
                        return Found::Not;
                    }
                    self.name.push_str(letters);
                    match end {
                        None => return Found::Begun,
                        Some(_) if names.contains(&self.name) => {}
                        Some(_) => return Found::Not,
                    }
                }
                Expected::Object(json) => {
                    let (length, found) = json.read(rest);
                    self.at += length;
                    match found {
                        Found::Whole(()) => self.object = self.at - json.length..self.at,
                        Found::Begun => return Found::Begun,
                        Found::Not => return Found::Not,
                    }
                }
                &mut Expected::Fields(name, arguments) => {
                    self.call = fields(&text[self.object.clone()], name, arguments);
                    if !self.call.as_ref().is_some_and(|call| names.contains(&call.name)) {
                        return Found::Not;
                    }
                }
                Expected::Arguments => {
                    let arguments = &text[self.object.clone()];
                    if !is_object(arguments) {
                        return Found::Not;
                    }
                    let name = std::mem::take(&mut self.name);
                    self.call = Some(FoundCall { name, arguments: arguments.to_owned() });
                }
            }
            self.expected.pop();
        }
        Found::Whole(self.call.take())
    }
}

/// A JSON object of which the end is looked for. Outside of strings it has no character that JSON has not, so
/// that of two calls that begin within one another, one is soon none.
#[derive(Clone, Debug, Default)]
struct Json {
    /// From its first brace on.
    length: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Json {
    /// Reads on, and answers how many bytes it looked at, the last of which ends or breaks the object if it
    /// does.
    fn read(&mut self, text: &str) -> (usize, Found<()>) {
        for (at, byte) in text.bytes().enumerate() {
            if self.length == 0 && byte.is_ascii_whitespace() {
                continue;
            }
            let mut is_json = self.length > 0 || byte == b'{';
            self.length += 1;
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                b',' | b':' | b'+' | b'-' | b'.' => {}
                _ => is_json = is_json && (byte.is_ascii_alphanumeric() || byte.is_ascii_whitespace()),
            }
            if !is_json || self.depth > DEEPEST {
                return (at + 1, Found::Not);
            }
            if self.depth == 0 {
                return (at + 1, Found::Whole(()));
            }
        }
        (text.len(), Found::Begun)
    }
}

pub(super) fn is_object(text: &str) -> bool {
    serde_json::from_str::<HashMap<String, &RawValue>>(text).is_ok()
}

/// The call that the fields of an object say; arguments may be written as a text that holds the object.
fn fields(object: &str, name: &str, arguments: &str) -> Option<FoundCall> {
    let fields: HashMap<String, &RawValue> = serde_json::from_str(object).ok()?;
    let name = serde_json::from_str(fields.get(name)?.get()).ok()?;
    let arguments = fields.get(arguments)?.get();
    let arguments = match serde_json::from_str::<String>(arguments) {
        Ok(text) => text,
        Err(_) => arguments.to_owned(),
    };
    is_object(&arguments).then_some(FoundCall { name, arguments })
}
