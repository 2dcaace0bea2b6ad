//! Typed access to metadata, with errors that name the file and the key.

use std::collections::HashMap;

use mlxcel_core::{Error, ErrorKind, Result, TokenId};

use super::header::OPERATION;
use super::value::{Kind, Value, each, integer, number, texts};

/// The metadata of a file.
#[derive(Clone, Copy)]
pub(super) struct Metadata<'a> {
    pub(super) location: &'a str,
    pub(super) file: &'a [u8],
    pub(super) entries: &'a HashMap<String, Value>,
}

impl<'a> Metadata<'a> {
    /// Whether there is such a key.
    pub(super) fn has(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    /// A text.
    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>> {
        match self.entries.get(key) {
            None => Ok(None),
            Some(Value::One(Kind::Text, range)) => {
                let bytes = self.file.get(range.clone()).unwrap_or_default();
                std::str::from_utf8(bytes)
                    .map(Some)
                    .map_err(|error| self.wrong(key, "a text").with_source(error))
            }
            Some(_) => Err(self.wrong(key, "a text")),
        }
    }

    /// A value that is no array, by a function that makes nothing of one that is not `expected`.
    fn one<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl Fn(Kind, &[u8]) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.entries.get(key) else { return Ok(None) };
        let read = match value {
            Value::One(kind, range) => read(*kind, self.file.get(range.clone()).unwrap_or_default()),
            Value::Array { .. } => None,
        };
        read.map(Some).ok_or_else(|| self.wrong(key, expected))
    }

    /// `true` or `false`.
    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.one(key, "true or false", |kind, bytes| match (kind, bytes) {
            (Kind::Bool, [0]) => Some(false),
            (Kind::Bool, [1]) => Some(true),
            _ => None,
        })
    }

    /// A whole number that is not negative.
    pub(super) fn size(&self, key: &str) -> Result<Option<usize>> {
        self.one(key, "a whole number that is not negative", size)
    }

    /// A token id, or `None` if it is not within a vocabulary of `tokens`: some converters write such an id
    /// for a missing token.
    pub(super) fn token(&self, key: &str, tokens: usize) -> Result<Option<TokenId>> {
        let id = self.one(key, "a token id", integer)?;
        Ok(id.and_then(|id| TokenId::try_from(id).ok()).filter(|id| (*id as usize) < tokens))
    }

    /// A way of pooling, as sentence-transformers calls it; none where the file does not say, pools nothing, or
    /// makes scores.
    pub(super) fn pooling(&self, key: &str) -> Result<Option<&'static str>> {
        match self.size(key)? {
            None | Some(0 | 4) => Ok(None),
            Some(1) => Ok(Some("mean")),
            Some(2) => Ok(Some("cls")),
            Some(3) => Ok(Some("lasttoken")),
            Some(other) => {
                let message =
                    format!("pooling of type {other} is not known; none, mean, cls, last and rank are");
                Err(self.unsupported(key, message))
            }
        }
    }

    /// A finite number.
    pub(super) fn number(&self, key: &str) -> Result<Option<f64>> {
        self.one(key, "a finite number", |kind, bytes| {
            number(kind, bytes).filter(|number| number.is_finite())
        })
    }

    /// One whole number for all layers, or one for each of them; at most `most`.
    pub(super) fn sizes(&self, key: &str, most: usize) -> Result<Option<Sizes>> {
        match self.entries.get(key) {
            None => Ok(None),
            Some(Value::One(..)) => Ok(self.size(key)?.map(Sizes::All)),
            Some(Value::Array { kind, count, range }) => {
                let wrong = || self.wrong(key, "whole numbers that are not negative, one for each layer");
                if *count > most {
                    return Err(wrong());
                }
                let bytes = self.file.get(range.clone()).unwrap_or_default();
                let size = |bytes: &[u8]| match kind {
                    Kind::Bool => bytes.first().map(|byte| usize::from(*byte != 0)),
                    kind => size(*kind, bytes),
                };
                let sizes = each(*kind, bytes).map(size).collect::<Option<Vec<_>>>();
                sizes.filter(|sizes| sizes.len() == *count).map(Sizes::Each).map(Some).ok_or_else(wrong)
            }
        }
    }

    /// The texts of an array, one after the other.
    pub(super) fn texts(&self, key: &'a str) -> Result<Option<Texts<'a>>> {
        match self.entries.get(key) {
            None => Ok(None),
            Some(Value::Array { kind: Kind::Text, count, range }) => {
                let bytes = self.file.get(range.clone()).unwrap_or_default();
                Ok(Some(Texts { metadata: *self, key, count: *count, bytes }))
            }
            Some(_) => Err(self.wrong(key, "an array of texts")),
        }
    }

    /// The numbers of an array, one after the other.
    pub(super) fn numbers(&self, key: &str) -> Result<Option<Numbers<'a>>> {
        match self.entries.get(key) {
            None => Ok(None),
            Some(Value::Array { kind, count, range }) if !matches!(kind, Kind::Text | Kind::Bool) => {
                let bytes = self.file.get(range.clone()).unwrap_or_default();
                Ok(Some(Numbers { kind: *kind, count: *count, bytes }))
            }
            Some(_) => Err(self.wrong(key, "an array of numbers")),
        }
    }

    /// The error for a key whose value is not `expected`.
    pub(super) fn wrong(&self, key: &str, expected: &str) -> Error {
        self.corrupt(key, format!("the value should be {expected}"))
    }

    /// The error for a key whose value is invalid.
    pub(super) fn corrupt(&self, key: &str, message: String) -> Error {
        Error::new(ErrorKind::Corrupt, OPERATION, message)
            .with_context("key", key.escape_debug())
            .with_context("path", self.location)
    }

    /// The error for a key whose value makes sense and is not implemented.
    pub(super) fn unsupported(&self, key: &str, message: String) -> Error {
        Error::unsupported(OPERATION, message)
            .with_context("key", key.escape_debug())
            .with_context("path", self.location)
    }

    /// The error for a key that must be there.
    pub(super) fn absent(&self, key: &str) -> Error {
        self.corrupt(key, "the metadata lacks this key".to_owned())
    }
}

/// A whole number that is not negative.
fn size(kind: Kind, bytes: &[u8]) -> Option<usize> {
    integer(kind, bytes).and_then(|number| usize::try_from(number).ok())
}

/// What a key says of layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sizes {
    All(usize),
    Each(Vec<usize>),
}

impl Sizes {
    /// That of a layer.
    pub(super) fn of(&self, layer: usize) -> usize {
        match self {
            Self::All(size) => *size,
            Self::Each(sizes) => sizes.get(layer).copied().unwrap_or_default(),
        }
    }
}

/// An array of texts.
#[derive(Clone, Copy)]
pub(super) struct Texts<'a> {
    metadata: Metadata<'a>,
    key: &'a str,
    pub(super) count: usize,
    bytes: &'a [u8],
}

impl<'a> Texts<'a> {
    /// Each text, or the error for one that is none.
    pub(super) fn iter(self) -> impl Iterator<Item = Result<&'a str>> {
        texts(self.bytes).map(move |bytes| {
            std::str::from_utf8(bytes)
                .map_err(|error| self.metadata.wrong(self.key, "UTF-8 text").with_source(error))
        })
    }
}

/// An array of numbers.
#[derive(Clone, Copy)]
pub(super) struct Numbers<'a> {
    kind: Kind,
    pub(super) count: usize,
    bytes: &'a [u8],
}

impl<'a> Numbers<'a> {
    /// Each number.
    pub(super) fn iter(self) -> impl Iterator<Item = f64> + 'a {
        each(self.kind, self.bytes).map(move |bytes| number(self.kind, bytes).unwrap_or(f64::NAN))
    }
}
