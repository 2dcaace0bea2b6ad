//! One tool call that is being read, piece by piece: each byte is looked at once.

use std::collections::HashMap;
use std::ops::Range;

use serde_json::Value;
use serde_json::value::RawValue;

use super::elements::{Element, elements};
use super::json::{Json, is_object};
use super::literals::Keywords;
use super::values::Written;
use super::{LONGEST_NAME, is_of_name};
use crate::chat::style::{Argument, Call, Id, Style};
use crate::reasoning::first_mark;

/// The deepest nesting of arguments.
pub(super) const DEEPEST: usize = 128;

/// The token with which Llama 3 may begin a call that is the whole answer. It is a part of the text where
/// special tokens are shown.
const PYTHON_TAG: &str = "<|python_tag|>";

/// Why a text is not what is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Miss {
    /// It may become it.
    Begun,
    Not,
}

/// A call that was read.
#[derive(Clone, Debug)]
pub(super) struct FoundCall {
    /// The id that templates render, if the family has its own.
    pub(super) id: Option<String>,
    pub(super) name: String,
    pub(super) arguments: Arguments,
}

/// The arguments of a call that was read.
#[derive(Clone, Debug)]
pub(super) enum Arguments {
    /// A JSON object.
    Object(String),
    /// Names and values, each written by itself.
    Fields(Vec<(String, Written)>),
    /// Elements that nest.
    Elements(Vec<(String, Element)>),
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
    /// Where the id is, and whether it is the call's number.
    id: Range<usize>,
    is_numbered: bool,
    /// Where the object is.
    object: Range<usize>,
    /// The texts between tags, in turn the name and the value of an argument.
    texts: Vec<String>,
    /// Where the last of them ends.
    passed: usize,
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
    /// This text, or not.
    Maybe(&'static str),
    /// A bare name.
    Name,
    /// The id of the call behind the name.
    Id(Id),
    /// Letters and digits.
    Word,
    /// A JSON object, with any space in front.
    Object(Json),
    /// That the object has the name and the arguments in these fields.
    Fields(&'static str, &'static str),
    /// That the object is the arguments.
    Arguments,
    /// Any number of arguments between tags.
    Tagged(Argument),
    /// Keyword arguments with literals.
    Keywords(Keywords),
    /// Text up to this mark or before one of `ends`, and where it begins if it did.
    Text { mark: &'static str, ends: &'static [&'static str], begin: Option<usize> },
    /// The text that was read, of elements behind this mark.
    Elements(&'static str),
    /// These lines, of which some may be missing, but not all, and where the last one that was there ends.
    Ends(&'static str, Option<usize>),
}

impl Attempt {
    pub(super) fn first(style: &Style) -> Self {
        let mut attempt = Self::new(Kind::First, Expected::Literal(style.open), Some(style));
        if style.trigger().is_empty() {
            attempt.expected.push(Expected::Maybe(PYTHON_TAG));
        }
        attempt
    }

    pub(super) fn next(style: &Style) -> Self {
        Self::new(Kind::Next, Expected::Maybe(style.separator.trim()), Some(style))
    }

    fn new(kind: Kind, begin: Expected, style: Option<&Style>) -> Self {
        let mut expected = vec![begin];
        let call = style.map(|style| &style.call);
        let short = style.map_or("", |style| style.short);
        match call {
            Some(&Call::Object { before, name, arguments, after }) => expected.extend([
                Expected::Literal(before),
                Expected::Object(Json::default()),
                Expected::Fields(name, arguments),
                Expected::Literal(after),
            ]),
            Some(&Call::Named { before, id, between, after }) => expected.extend([
                Expected::Literal(before),
                Expected::Name,
                Expected::Id(id),
                Expected::Literal(between),
                Expected::Object(Json::default()),
                Expected::Arguments,
                Expected::Literal(after),
            ]),
            Some(&Call::Tagged { before, between, argument, after }) => expected.extend([
                Expected::Maybe(
                    before.strip_suffix(short).filter(|_| !short.is_empty()).unwrap_or("").trim(),
                ),
                Expected::Literal(if short.is_empty() { before } else { short }),
                Expected::Name,
                Expected::Literal(between),
                Expected::Tagged(argument),
                Expected::Ends(after, None),
            ]),
            Some(&Call::Elements { before, between, mark, after }) => expected.extend([
                Expected::Literal(before),
                Expected::Name,
                Expected::Literal(between),
                Expected::Text { mark: after.trim_end(), ends: &[], begin: None },
                Expected::Elements(mark),
            ]),
            Some(&Call::Keywords { before, open, assign, literals, after }) => expected.extend([
                Expected::Literal(before),
                Expected::Name,
                Expected::Literal(open),
                Expected::Keywords(Keywords::new(assign, literals)),
                Expected::Literal(after),
            ]),
            Some(Call::Channel { .. }) | None => {}
        }
        expected.reverse();
        Self {
            kind,
            expected,
            at: 0,
            name: String::new(),
            id: 0..0,
            is_numbered: matches!(call, Some(Call::Named { id: Id::Number, .. })),
            object: 0..0,
            texts: Vec::new(),
            passed: 0,
            call: None,
        }
    }

    /// What to try where this is not it.
    pub(super) fn otherwise(&self, style: &Style) -> Option<Self> {
        // Without a mark behind all calls, a separator may be there.
        let close = match (style.close, style.separator.trim()) {
            ("", separator) if !separator.is_empty() => Expected::Maybe(separator),
            (close, _) => Expected::Literal(close),
        };
        (self.kind == Kind::Next).then(|| Self::new(Kind::Close, close, None))
    }

    /// Whether no call follows.
    pub(super) fn ends_calls(&self) -> bool {
        self.kind == Kind::Close
    }

    /// How many bytes were read.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Whether nothing is missing but what is written behind a call: some models leave that out at the end of
    /// an answer.
    pub(super) fn is_whole(&self) -> bool {
        let is_end = |expected: &_| matches!(expected, Expected::Literal(_) | Expected::Ends(..));
        self.call.is_some() && self.expected.iter().all(is_end)
    }

    pub(super) fn into_call(self) -> Option<FoundCall> {
        self.call
    }

    /// How many bytes are text if this is no call: those up to the last end of a text between tags, and all if
    /// such a text has no end. A call within them would be an argument's value, and each attempt at one would
    /// read as far.
    pub(super) fn passed(&self) -> usize {
        let in_text = match self.expected.last() {
            Some(Expected::Text { .. }) => true,
            Some(Expected::Keywords(keywords)) => keywords.is_in_string(),
            _ => false,
        };
        if in_text { self.at } else { self.passed }
    }

    /// Reads on in `text`, of which the bytes that were read before are the same. Found is the call, of one
    /// of `names`.
    pub(super) fn read(&mut self, text: &str, names: &[String]) -> Result<Option<FoundCall>, Miss> {
        while let Some(expected) = self.expected.last_mut() {
            let rest = &text[self.at..];
            match expected {
                Expected::Literal(literal) => {
                    *literal = literal.trim_start();
                    if let Some(wanted) = literal.chars().next() {
                        let found = rest.trim_start();
                        self.at = text.len() - found.len();
                        if !found.starts_with(wanted) {
                            return Err(if found.is_empty() { Miss::Begun } else { Miss::Not });
                        }
                        self.at += wanted.len_utf8();
                        *literal = &literal[wanted.len_utf8()..];
                        continue;
                    }
                }
                &mut Expected::Maybe(tag) => {
                    if pass(&mut self.at, text, tag) == Err(Miss::Begun) {
                        return Err(Miss::Begun);
                    }
                }
                Expected::Name => {
                    if self.name.is_empty() {
                        self.at = text.len() - rest.trim_start().len();
                    }
                    let rest = &text[self.at..];
                    let end = rest.find(|character: char| !is_of_name(character));
                    let letters = &rest[..end.unwrap_or(rest.len())];
                    self.at += letters.len();
                    if self.name.len() + letters.len() > LONGEST_NAME {
                        return Err(Miss::Not);
                    }
                    self.name.push_str(letters);
                    match end {
                        None => return Err(Miss::Begun),
                        Some(_) if names.contains(&self.name) => {}
                        Some(_) => return Err(Miss::Not),
                    }
                }
                &mut Expected::Id(Id::None) => {}
                &mut Expected::Id(id) => {
                    let (begin, must) = match id {
                        Id::May(begin) => (begin, false),
                        Id::Number | Id::None => (":", true),
                    };
                    match pass(&mut self.at, text, begin) {
                        Ok(()) => {
                            self.id = self.at..self.at;
                            *expected = Expected::Word;
                            continue;
                        }
                        Err(Miss::Not) if !must => {}
                        Err(miss) => return Err(miss),
                    }
                }
                Expected::Word => {
                    let end = rest.find(|character: char| !character.is_ascii_alphanumeric());
                    self.at += end.unwrap_or(rest.len());
                    self.id.end = self.at;
                    if self.id.len() > LONGEST_NAME {
                        return Err(Miss::Not);
                    }
                    end.ok_or(Miss::Begun)?;
                }
                Expected::Object(json) => {
                    let (length, found) = json.read(rest);
                    self.at += length;
                    found?;
                    self.object = self.at - json.length..self.at;
                }
                &mut Expected::Fields(name, arguments) => {
                    self.call = fields(&text[self.object.clone()], name, arguments);
                    if !self.call.as_ref().is_some_and(|call| names.contains(&call.name)) {
                        return Err(Miss::Not);
                    }
                }
                Expected::Arguments => {
                    let arguments = &text[self.object.clone()];
                    if !is_object(arguments) {
                        return Err(Miss::Not);
                    }
                    let id = Some(&text[self.id.clone()]).filter(|id| self.is_numbered && !id.is_empty());
                    let id = id.map(|number| format!("functions.{}:{number}", self.name));
                    self.found(id, Arguments::Object(arguments.to_owned()));
                }
                &mut Expected::Tagged(argument) => match pass(&mut self.at, text, argument.open) {
                    Ok(()) => {
                        let mark = argument.close.trim();
                        self.expected.extend([
                            Expected::Text { mark, ends: argument.ends, begin: None },
                            Expected::Literal(argument.middle),
                            Expected::Text { mark: argument.named, ends: &[], begin: None },
                        ]);
                        continue;
                    }
                    Err(Miss::Begun) => return Err(Miss::Begun),
                    Err(Miss::Not) => self.found(None, Arguments::Fields(argument.fields(&self.texts))),
                },
                Expected::Keywords(keywords) => {
                    let begin = self.at - keywords.length;
                    let (length, found) = keywords.read(rest);
                    self.at += length;
                    self.passed = begin + keywords.passed;
                    found?;
                    let fields = keywords.fields(&text[begin..self.at]).ok_or(Miss::Not)?;
                    self.found(None, Arguments::Fields(fields));
                }
                Expected::Text { mark, ends, begin } => {
                    let begin = *begin.get_or_insert(self.at);
                    let marks = std::iter::once(*mark).chain(ends.iter().copied());
                    let (length, end) = first_mark(rest, marks).map_err(|certain| {
                        self.at += certain;
                        Miss::Begun
                    })?;
                    // The line feed that others are behind is of the text.
                    self.at += length + (end.len() - end.trim_start().len());
                    self.texts.push(text[begin..self.at].to_owned());
                    if end == *mark {
                        self.at += mark.len();
                    }
                    self.passed = self.at;
                }
                &mut Expected::Elements(mark) => {
                    let elements =
                        self.texts.pop().and_then(|text| elements(&text, mark)).ok_or(Miss::Not)?;
                    self.found(None, Arguments::Elements(elements));
                }
                Expected::Ends("", end) => self.at = end.ok_or(Miss::Not)?,
                Expected::Ends(lines, end) => {
                    let (line, more) = lines.split_once('\n').unwrap_or((lines, ""));
                    match pass(&mut self.at, text, line) {
                        Ok(()) => *end = Some(self.at),
                        Err(Miss::Begun) => return Err(Miss::Begun),
                        Err(Miss::Not) => {}
                    }
                    *lines = more;
                    continue;
                }
            }
            self.expected.pop();
        }
        Ok(self.call.take())
    }

    /// The call of the name that was read, with these arguments.
    fn found(&mut self, id: Option<String>, arguments: Arguments) {
        self.call = Some(FoundCall { id, name: std::mem::take(&mut self.name), arguments });
    }
}

/// Passes the space at `at` in `text`, and `mark` if that is behind it.
fn pass(at: &mut usize, text: &str, mark: &str) -> Result<(), Miss> {
    let found = text[*at..].trim_start();
    *at = text.len() - found.len();
    if !found.starts_with(mark) {
        return Err(if mark.starts_with(found) { Miss::Begun } else { Miss::Not });
    }
    *at += mark.len();
    Ok(())
}

impl Argument {
    /// Names and values of the texts between tags.
    fn fields(&self, texts: &[String]) -> Vec<(String, Written)> {
        let value = |mut text: &str| {
            // They are of the tags.
            if self.middle.ends_with('\n') || self.close.starts_with('\n') {
                text = text.strip_prefix('\n').unwrap_or(text);
                text = text.strip_suffix('\n').unwrap_or(text);
            }
            // As MiniCPM writes text with characters that XML reserves.
            let data = text.trim().strip_prefix("<![CDATA[").and_then(|text| text.strip_suffix("]]>"));
            data.unwrap_or(text).to_owned()
        };
        let pairs = texts.chunks_exact(2);
        pairs.map(|pair| self.field(pair[0].trim(), value(&pair[1]))).collect()
    }

    /// The name and the value of an argument, of which a family may say whether it is a string.
    fn field(&self, name: &str, text: String) -> (String, Written) {
        let [string, other] =
            self.kinds.map(|kinds| kinds.map(|kind| name.strip_suffix(kind))).unwrap_or_default();
        let is_json = || serde_json::from_str::<Value>(&text).is_ok();
        match (string, other) {
            (Some(name), _) => (name.to_owned(), Written::Json(Value::from(text).to_string())),
            (_, Some(name)) if is_json() => (name.to_owned(), Written::Json(text.trim().to_owned())),
            _ => (other.unwrap_or(name).to_owned(), Written::Text(text)),
        }
    }
}

/// The call that the fields of an object say; arguments may be written as a text that holds the object.
fn fields(object: &str, name: &str, arguments: &str) -> Option<FoundCall> {
    let fields: HashMap<String, &RawValue> = serde_json::from_str(object).ok()?;
    let name = serde_json::from_str(fields.get(name)?.get()).ok()?;
    // Models of either field write the other one, too.
    let arguments =
        [arguments, "arguments", "parameters"].into_iter().find_map(|field| fields.get(field))?.get();
    let arguments = match serde_json::from_str::<String>(arguments) {
        Ok(text) => text,
        Err(_) if arguments == "null" => "{}".to_owned(),
        Err(_) => arguments.to_owned(),
    };
    is_object(&arguments).then_some(FoundCall { id: None, name, arguments: Arguments::Object(arguments) })
}
