//! Typed access to JSON config, with errors that name the file and the field.

use std::ops::RangeInclusive;

use mlxcel_core::{Error, ErrorKind, Result, TokenId};
use serde_json::{Map, Value};

use crate::files::parse_json;

const OPERATION: &str = "read checkpoint settings";

/// The content of a JSON file of settings such as `config.json`.
#[derive(Debug)]
pub(crate) struct Config {
    location: String,
    fields: Map<String, Value>,
}

impl Config {
    /// Parses the content of the file that errors call `location`; it must be an object.
    pub(crate) fn parse(location: String, content: &[u8]) -> Result<Self> {
        const FAULT: &str = "the file is not JSON; download it again";
        let parsed =
            parse_json(&location, content, FAULT).or_else(|error| match quote_special_floats(content) {
                Some(content) => parse_json(&location, &content, FAULT),
                None => Err(error),
            });
        match parsed? {
            Value::Object(fields) => Ok(Self { location, fields }),
            _ => Err(Error::new(ErrorKind::Corrupt, OPERATION, "the file should contain a JSON object")
                .with_context("path", &location)),
        }
    }

    /// All fields of the file.
    pub(crate) fn fields(&self) -> Fields<'_> {
        Fields { location: &self.location, parents: [None; 2], fields: &self.fields }
    }
}

/// The fields of an object in a settings file. A field that is `null` counts as absent, but
/// for a [`truth`](Self::truth).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a> {
    location: &'a str,
    /// The objects around this one within the file, outermost first.
    parents: [Option<&'a str>; 2],
    fields: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// Other fields in the place of these.
    pub(crate) fn replaced<'b>(&self, fields: &'b Map<String, Value>) -> Fields<'b>
    where
        'a: 'b,
    {
        Fields { fields, ..*self }
    }

    /// All fields.
    pub(crate) fn all(&self) -> &'a Map<String, Value> {
        self.fields
    }

    /// The value of a field, if there is one.
    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        self.fields.get(key).filter(|value| !value.is_null())
    }

    /// The names of all fields.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &'a str> {
        self.fields.keys().map(String::as_str)
    }

    /// Whether the file mentions the field at all, be it with `null`.
    pub(crate) fn mentions(&self, key: &str) -> bool {
        self.fields.contains_key(key)
    }

    /// Whether the file has the field with `null`.
    pub(crate) fn is_null(&self, key: &str) -> bool {
        self.fields.get(key).is_some_and(Value::is_null)
    }

    /// A whole number within `range`.
    pub(crate) fn size(&self, key: &str, range: RangeInclusive<usize>) -> Result<Option<usize>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
        match number {
            Some(number) if range.contains(&number) => Ok(Some(number)),
            _ => Err(self.wrong(
                key,
                format!(
                    "{} should be a whole number from {} to {}",
                    brief(value),
                    range.start(),
                    range.end()
                ),
            )),
        }
    }

    /// A finite number.
    pub(crate) fn number(&self, key: &str) -> Result<Option<f64>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_f64() {
            // Every use is in single precision, where a larger number would be infinite.
            Some(number) if number.abs() <= f64::from(f32::MAX) => Ok(Some(number)),
            _ => Err(self.wrong(key, format!("{} should be a finite number", brief(value)))),
        }
    }

    /// A finite number above zero.
    pub(crate) fn positive(&self, key: &str) -> Result<Option<f64>> {
        match self.number(key)? {
            Some(number) if number < f64::from(f32::MIN_POSITIVE) => {
                Err(self.wrong(key, format!("{number} should be positive")))
            }
            number => Ok(number),
        }
    }

    /// A finite number above zero that must be there.
    pub(crate) fn required_positive(&self, key: &str) -> Result<f64> {
        self.positive(key)?.ok_or_else(|| self.absent(key))
    }

    /// `true` or `false`, as a condition of Python's reads them: `null` is false, and only an absent field has
    /// the default.
    pub(crate) fn truth(&self, key: &str, default: bool) -> Result<bool> {
        Ok(self.flag(key)?.unwrap_or(default && !self.mentions(key)))
    }

    /// `true` or `false`.
    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let flag = value.as_bool();
        flag.map(Some).ok_or_else(|| self.wrong(key, format!("{} should be true or false", brief(value))))
    }

    /// A text.
    pub(crate) fn text(&self, key: &str) -> Result<Option<&'a str>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let text = value.as_str();
        text.map(Some).ok_or_else(|| self.wrong(key, format!("{} should be a string", brief(value))))
    }

    /// An object within this one; an empty one counts as absent.
    pub(crate) fn object(&self, key: &str) -> Result<Option<Fields<'a>>> {
        let Some((key, value)) = self.fields.get_key_value(key).filter(|(_, value)| !value.is_null()) else {
            return Ok(None);
        };
        match value.as_object() {
            Some(fields) if fields.is_empty() => Ok(None),
            Some(fields) => {
                let parents = [self.parents[1], Some(key.as_str())];
                Ok(Some(Fields { location: self.location, parents, fields }))
            }
            None => Err(self.wrong(key, format!("{} should be an object", brief(value)))),
        }
    }

    /// Two numbers, of which the first is finite and not above the second, which may be infinite.
    pub(crate) fn bounds(&self, key: &str) -> Result<Option<(f64, f64)>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let ends = value.as_array().map(|ends| ends.iter().map(float).collect::<Vec<_>>());
        match ends.as_deref() {
            Some(&[Some(least), Some(most)]) if least.abs() <= f64::from(f32::MAX) && least <= most => {
                Ok(Some((least, most)))
            }
            _ => Err(self.wrong(key, format!("{} should be a lower and an upper bound", brief(value)))),
        }
    }

    /// A list of finite numbers above zero.
    pub(crate) fn positives(&self, key: &str) -> Result<Option<Vec<f64>>> {
        let range = f64::from(f32::MIN_POSITIVE)..=f64::from(f32::MAX);
        self.list(key, "numbers above zero", |value| value.as_f64().filter(|number| range.contains(number)))
    }

    /// A list of numbers.
    pub(crate) fn numbers(&self, key: &str) -> Result<Option<Vec<f64>>> {
        self.list(key, "numbers", Value::as_f64)
    }

    /// A list of numbers, some of which may be missing.
    pub(crate) fn optional_numbers(&self, key: &str) -> Result<Option<Vec<Option<f64>>>> {
        self.list(key, "numbers or null", |value| match value {
            Value::Null => Some(None),
            number => number.as_f64().map(Some),
        })
    }

    /// A list of texts.
    pub(crate) fn texts(&self, key: &str) -> Result<Option<Vec<&'a str>>> {
        self.list(key, "texts", Value::as_str)
    }

    /// A list of whole numbers.
    pub(crate) fn sizes(&self, key: &str) -> Result<Option<Vec<usize>>> {
        self.list(key, "whole numbers", |value| {
            value.as_u64().and_then(|number| usize::try_from(number).ok())
        })
    }

    fn list<T>(&self, key: &str, of: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Option<Vec<T>>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let items = value.as_array().and_then(|items| items.iter().map(read).collect());
        match items {
            Some(items) => Ok(Some(items)),
            None => Err(self.wrong(key, format!("{} should be a list of {of}", brief(value)))),
        }
    }

    /// Token ids: one number, or a list of them. Negative ids stand for "none" and are left out.
    pub(crate) fn token_ids(&self, key: &str) -> Result<Option<Vec<TokenId>>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let listed = match value {
            Value::Array(ids) => ids.as_slice(),
            single => std::slice::from_ref(single),
        };
        let mut ids = Vec::with_capacity(listed.len());
        for id in listed {
            match id.as_i64() {
                Some(id) if id < 0 => {}
                Some(id) if TokenId::try_from(id).is_ok() => ids.push(id as TokenId),
                _ => {
                    return Err(
                        self.wrong(key, format!("{} should be a token id or a list of them", brief(value)))
                    );
                }
            }
        }
        Ok(Some(ids))
    }

    /// The error for a field whose value is invalid.
    pub(crate) fn wrong(&self, key: &str, message: String) -> Error {
        self.locate(Error::new(ErrorKind::Corrupt, OPERATION, message), key)
    }

    /// The error for a field whose value makes sense and is not implemented.
    pub(crate) fn unsupported(&self, key: &str, message: String) -> Error {
        self.locate(Error::unsupported(OPERATION, message), key)
    }

    /// The error for a field that must be there.
    pub(crate) fn absent(&self, key: &str) -> Error {
        self.wrong(key, "the field is missing".to_owned())
    }

    fn locate(&self, error: Error, key: &str) -> Error {
        let field = self.parents.into_iter().flatten().chain([key]).collect::<Vec<_>>().join(".");
        error.with_context("field", field).with_context("path", self.location)
    }
}

/// The name under which transformers stores a float that JSON has no number for, alone in an object.
const SPECIAL_FLOAT: &str = "__float__";

/// A number, infinite ones included.
fn float(value: &Value) -> Option<f64> {
    match value {
        Value::Object(fields) if fields.len() == 1 => match fields.get(SPECIAL_FLOAT)?.as_str()? {
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        value => value.as_f64(),
    }
}

/// The same content with each bare `Infinity`, `-Infinity` and `NaN`, which Python writes where JSON has no
/// number, in the form that transformers gives them today: `{"__float__": "Infinity"}`. `None` if there is
/// none.
fn quote_special_floats(content: &[u8]) -> Option<Vec<u8>> {
    let mut quoted = Vec::with_capacity(content.len() + 32);
    let (mut at, mut in_text, mut found) = (0, false, false);
    while let Some(&byte) = content.get(at) {
        let rest = content.get(at..).unwrap_or_default();
        let special =
            ["-Infinity", "Infinity", "NaN"].into_iter().find(|name| rest.starts_with(name.as_bytes()));
        match special {
            Some(name) if !in_text => {
                quoted.extend_from_slice(format!("{{\"{SPECIAL_FLOAT}\": \"{name}\"}}").as_bytes());
                found = true;
                at += name.len();
            }
            _ => {
                // What follows a backslash within a text is part of it.
                let escape = in_text && byte == b'\\';
                in_text ^= byte == b'"';
                let end = content.len().min(at + if escape { 2 } else { 1 });
                quoted.extend_from_slice(content.get(at..end).unwrap_or_default());
                at = end;
            }
        }
    }
    found.then_some(quoted)
}

/// A value short enough for an error message.
fn brief(value: &Value) -> String {
    const LONGEST: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
