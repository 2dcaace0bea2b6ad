//! Python's methods of texts, lists and dictionaries. Those that change a value are not there, as in
//! transformers' sandbox.

use super::arguments::Values;
use super::digits::{is_decimal, is_digit};
use super::error::{Result, TemplateError, fail};
use super::evaluate::Evaluator;
use super::marked::refuse_marked;
use super::strings::{self, SPACE, Side, ZERO};
use super::value::{Text, Value};

const OF_TEXTS: [&str; 39] = [
    "strip", "lstrip", "rstrip", "split", "rsplit", "splitlines", "startswith", "endswith", "replace",
    "upper", "lower", "title", "capitalize", "casefold", "swapcase", "join", "find", "rfind", "index",
    "rindex", "count", "isdigit", "isdecimal", "isnumeric", "isalpha", "isalnum", "isspace", "isupper",
    "islower", "isascii", "format", "zfill", "center", "ljust", "rjust", "removeprefix", "removesuffix",
    "partition", "rpartition",
];
const OF_LISTS: [&str; 3] = ["index", "count", "copy"];
const OF_DICTS: [&str; 5] = ["items", "keys", "values", "get", "copy"];
/// What would change a value.
const CHANGING: [&str; 12] = [
    "append", "extend", "insert", "pop", "remove", "clear", "sort", "reverse", "update", "setdefault",
    "popitem", "add",
];

pub(super) fn exists(value: &Value<'_>, name: &str) -> bool {
    match value {
        Value::Text(_) => OF_TEXTS.contains(&name),
        Value::Seq(_) => OF_LISTS.contains(&name) || CHANGING.contains(&name),
        Value::Dict(_) => {
            OF_DICTS.contains(&name) || ["pop", "clear", "update", "setdefault", "popitem"].contains(&name)
        }
        _ => false,
    }
}

impl<'a> Evaluator<'a> {
    /// Calls a method that [`exists`].
    pub(super) fn method(&mut self, value: &Value<'a>, name: &str, values: &Values<'a>) -> Result<Value<'a>> {
        values.read(&self.meter)?;
        match value {
            Value::Text(text) => {
                if matches!(name, "format" | "join" | "replace") {
                    refuse_marked(name, text)?;
                }
                let result = self.text_method(text, name, values)?;
                self.keep_mark(text.is_marked(), result)
            }
            Value::Dict(dict) => match name {
                "get" => {
                    let [key, default] = values.take(name, ["key", "default"])?;
                    let is_given = values.positional.len() > 1 || !values.named.is_empty();
                    let default = if is_given { default } else { Value::None };
                    Ok(dict.get(&key, &self.meter)?.unwrap_or(default))
                }
                "copy" => Ok(value.clone()),
                "items" | "keys" | "values" => {
                    let [] = values.take(name, [])?;
                    let mut list = self.list()?;
                    for (key, value) in &dict.entries {
                        list.push(match name {
                            "keys" => key.clone(),
                            "values" => value.clone(),
                            _ => self.pair(key.clone(), value.clone())?,
                        })?;
                    }
                    Ok(list.finish())
                }
                _ => Err(changes(name)),
            },
            Value::Seq(seq) => match name {
                "copy" => Ok(value.clone()),
                "index" | "count" => {
                    let [wanted] = values.take(name, ["value"])?;
                    let mut count = 0;
                    for (index, item) in seq.items.iter().enumerate() {
                        if item.equals(&wanted, &self.meter)? {
                            if name == "index" {
                                return Ok(Value::Int(index as i128));
                            }
                            count += 1;
                        }
                    }
                    if name == "count" {
                        Ok(Value::Int(count))
                    } else {
                        fail!("the list does not contain the value")
                    }
                }
                _ => Err(changes(name)),
            },
            _ => fail!("{} has no method '{name}'", value.type_name()),
        }
    }

    /// A tuple of two.
    pub(super) fn pair(&self, first: Value<'a>, second: Value<'a>) -> Result<Value<'a>> {
        let mut pair = self.list()?;
        pair.push(first)?;
        pair.push(second)?;
        Ok(pair.into_seq(true))
    }

    fn text_method(&mut self, text: &Text<'a>, name: &str, values: &Values<'a>) -> Result<Value<'a>> {
        self.meter.read(text.len())?;
        match name {
            "strip" | "lstrip" | "rstrip" => {
                let [characters] = values.take(name, ["chars"])?;
                self.strip(text, &characters, (name != "rstrip", name != "lstrip"))
            }
            "split" | "rsplit" => {
                let [separator, count] = values.take(name, ["sep", "maxsplit"])?;
                self.split(text, &separator, count.int_or(-1)?, name == "rsplit")
            }
            "splitlines" => {
                let [keep] = values.take(name, ["keepends"])?;
                let mut list = self.list()?;
                let mut lines = strings::lines(text).peekable();
                while let Some(line) = lines.next() {
                    // A line begins where the break of the one before it ends.
                    let next = lines.peek().map_or(text.len(), |next| next.start);
                    list.push(self.part(text, line.start..if keep.is_true() { next } else { line.end })?)?;
                }
                Ok(list.finish())
            }
            "startswith" | "endswith" => {
                let [affix, start, end] = values.take(name, ["affix", "start", "end"])?;
                let part = self.range_of(text, &start, &end)?.map(|(_, range)| &text[range]);
                let meets = |affix: &str| {
                    part.is_some_and(|text| {
                        if name == "startswith" { text.starts_with(affix) } else { text.ends_with(affix) }
                    })
                };
                match &affix {
                    Value::Seq(seq) if seq.tuple => {
                        for affix in seq.items.iter().filter_map(Value::as_text) {
                            self.meter.read(affix.len())?;
                        }
                        Ok(Value::Bool(seq.items.iter().filter_map(Value::as_text).any(meets)))
                    }
                    Value::Text(affix) => Ok(Value::Bool(meets(affix))),
                    _ => fail!("'{name}' does not take {}", affix.type_name()),
                }
            }
            "replace" => {
                let [old, new, count] = values.take(name, ["old", "new", "count"])?;
                let (Value::Text(old), Value::Text(new)) = (&old, &new) else {
                    return fail!("'replace' takes two strings");
                };
                self.replace(text, old, new, count.int_or(-1)?)
            }
            "join" => {
                let [items] = values.take(name, ["iterable"])?;
                let items = self.iterate(&items)?;
                if let Some(other) = items.items.iter().find(|item| item.as_text().is_none()) {
                    return fail!("'join' takes strings and not {}", other.type_name());
                }
                self.join(text, &items.items)
            }
            "find" | "rfind" | "index" | "rindex" => {
                let [part, start, end] = values.take(name, ["sub", "start", "end"])?;
                let part = required(name, &part)?;
                let found = self.range_of(text, &start, &end)?.and_then(|(before, range)| {
                    Some(before + strings::find(&text[range], part, name.starts_with('r'))?)
                });
                match found {
                    Some(at) => Ok(Value::Int(at as i128)),
                    None if name.ends_with("find") => Ok(Value::Int(-1)),
                    None => fail!("the substring is not found"),
                }
            }
            "count" => {
                let [part, start, end] = values.take(name, ["sub", "start", "end"])?;
                let part = required(name, &part)?;
                let count = self.range_of(text, &start, &end)?.map_or(0, |(_, range)| {
                    let text = &text[range];
                    if part.is_empty() { text.chars().count() + 1 } else { text.matches(part).count() }
                });
                Ok(Value::Int(count as i128))
            }
            "format" => self.format(text, values),
            "zfill" => {
                let [width] = values.take(name, ["width"])?;
                let sign = usize::from(text.starts_with(['+', '-']));
                let mut out = self.builder()?;
                out.push_part(text, 0..sign)?;
                out.repeat(&ZERO, width.count_or(0)?.saturating_sub(text.chars().count()))?;
                out.push_part(text, sign..text.len())?;
                Ok(out.finish())
            }
            "center" | "ljust" | "rjust" => {
                let [width, fill] = values.take(name, ["width", "fillchar"])?;
                let fill = match &fill {
                    Value::Undefined => SPACE,
                    fill => self.text_of(fill)?,
                };
                if fill.chars().count() != 1 {
                    return fail!("the fill character must be a single character");
                }
                let side = match name {
                    "center" => Side::Both,
                    "ljust" => Side::Right,
                    _ => Side::Left,
                };
                self.pad(text, width.count_or(0)?, &fill, side)
            }
            "removeprefix" | "removesuffix" => {
                let [affix] = values.take(name, ["affix"])?;
                let affix = required(name, &affix)?;
                if name == "removeprefix" && text.starts_with(affix) {
                    self.part(text, affix.len()..text.len())
                } else if name == "removesuffix" && text.ends_with(affix) {
                    self.part(text, 0..text.len() - affix.len())
                } else {
                    Ok(Value::Text(text.clone()))
                }
            }
            "partition" | "rpartition" => {
                let [separator] = values.take(name, ["sep"])?;
                let separator = separator.text_or("")?;
                if separator.is_empty() {
                    return fail!("the separator is empty");
                }
                let at = if name == "partition" { text.find(separator) } else { text.rfind(separator) };
                let (first, second) = match at {
                    Some(at) => (0..at, at + separator.len()..text.len()),
                    None if name == "partition" => (0..text.len(), text.len()..text.len()),
                    None => (0..0, 0..text.len()),
                };
                let between = first.end..second.start;
                let mut parts = self.list()?;
                let between = if at.is_some() { between } else { 0..0 };
                for range in [first, between, second] {
                    parts.push(self.part(text, range)?)?;
                }
                Ok(parts.into_seq(true))
            }
            _ => {
                let [] = values.take(name, [])?;
                self.plain_text_method(text, name)
            }
        }
    }

    /// The part of a text from character `start` to `end`, and how many characters are before it; none if it
    /// starts after the end.
    fn range_of(
        &self,
        text: &Text<'a>,
        start: &Value<'a>,
        end: &Value<'a>,
    ) -> Result<Option<(usize, std::ops::Range<usize>)>> {
        if start.given().is_none() && end.given().is_none() {
            return Ok(Some((0, 0..text.len())));
        }
        self.meter.read(4 * text.len())?;
        let length = text.chars().count() as i128;
        let bound = |bound: &Value<'a>, default: i128| {
            let bound = bound.given().map_or(Ok(default), |bound| bound.int_or(default))?;
            Ok(if bound < 0 { bound.saturating_add(length).max(0) } else { bound })
        };
        let (start, end) = (bound(start, 0)?, bound(end, length)?.min(length));
        if start > end {
            return Ok(None);
        }
        let at = |index: i128| {
            let mut starts = text.char_indices().map(|(at, _)| at);
            starts.nth(index as usize).unwrap_or(text.len())
        };
        Ok(Some((start as usize, at(start)..at(end))))
    }

    /// The methods without arguments.
    fn plain_text_method(&mut self, text: &Text<'a>, name: &str) -> Result<Value<'a>> {
        let all = |holds: fn(char) -> bool| Ok(Value::Bool(!text.is_empty() && text.chars().all(holds)));
        match name {
            "upper" => self.upper(text),
            "lower" => self.lower(text),
            "casefold" => self.casefold(text),
            "capitalize" => self.capitalize(text),
            "title" => self.title(text),
            "swapcase" => self.swapcase(text),
            "isdigit" => all(is_digit),
            "isdecimal" => all(is_decimal),
            "isnumeric" => all(char::is_numeric),
            "isalpha" => all(char::is_alphabetic),
            "isalnum" => all(char::is_alphanumeric),
            "isspace" => all(super::lexer::is_space),
            "isascii" => Ok(Value::Bool(text.is_ascii())),
            "isupper" => Ok(Value::Bool(strings::is_upper(text))),
            "islower" => Ok(Value::Bool(strings::is_lower(text))),
            _ => fail!("the method '{name}' is not supported"),
        }
    }
}

/// An argument that is a text, and has no default.
fn required<'v>(name: &str, value: &'v Value<'_>) -> Result<&'v str> {
    value.as_text().ok_or_else(|| TemplateError::new(format!("'{name}' does not take {}", value.type_name())))
}

fn changes(name: &str) -> TemplateError {
    TemplateError::new(format!("'{name}' would change a value, which templates may not"))
}
