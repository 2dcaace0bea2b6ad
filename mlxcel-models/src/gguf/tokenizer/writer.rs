//! Writes `tokenizer.json`, up to the size limit of such files.

use mlxcel_core::{Error, ErrorKind, Result};
use serde::Serialize;

use super::super::header::OPERATION;
use crate::files::FileKind;

/// JSON text, as it is written.
pub(super) struct Writer<'a> {
    location: &'a str,
    text: String,
}

impl<'a> Writer<'a> {
    /// Nothing yet, of the file that errors call `location`.
    pub(super) fn new(location: &'a str) -> Self {
        Self { location, text: String::new() }
    }

    /// Text that is JSON already.
    pub(super) fn raw(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// A value.
    pub(super) fn value(&mut self, value: &impl Serialize) -> Result<()> {
        let failed = |error| {
            Error::new(ErrorKind::Internal, OPERATION, "no JSON can be made of it").with_source(error)
        };
        self.text.push_str(&serde_json::to_string(value).map_err(failed)?);
        let limit = FileKind::Tokenizer.limit();
        if self.text.len() as u64 > limit {
            let message = format!("the tokenizer takes more than {limit} bytes as tokenizer.json");
            return Err(
                Error::new(ErrorKind::Corrupt, OPERATION, message).with_context("path", self.location)
            );
        }
        Ok(())
    }

    /// A list.
    pub(super) fn list<T>(
        &mut self,
        items: impl Iterator<Item = T>,
        write: impl Fn(&mut Self, T) -> Result<()>,
    ) -> Result<()> {
        self.items(['[', ']'], items, write)
    }

    /// An object, each field of which `write` writes, name and value.
    pub(super) fn object<T>(
        &mut self,
        items: impl Iterator<Item = T>,
        write: impl Fn(&mut Self, T) -> Result<()>,
    ) -> Result<()> {
        self.items(['{', '}'], items, write)
    }

    fn items<T>(
        &mut self,
        [open, close]: [char; 2],
        items: impl Iterator<Item = T>,
        write: impl Fn(&mut Self, T) -> Result<()>,
    ) -> Result<()> {
        self.text.push(open);
        for (index, item) in items.enumerate() {
            if index > 0 {
                self.text.push(',');
            }
            write(self, item)?;
        }
        self.text.push(close);
        Ok(())
    }

    /// All that was written.
    pub(super) fn finish(self) -> String {
        self.text
    }
}
