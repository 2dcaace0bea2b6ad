//! A JSON object in a text: where it ends.

use std::collections::HashMap;

use serde_json::value::RawValue;

use super::attempt::{DEEPEST, Miss};

/// A JSON object of which the end is looked for. Outside of strings it has no character that JSON has not, so
/// that of two calls that begin within one another, one is soon none.
#[derive(Clone, Debug, Default)]
pub(super) struct Json {
    /// From its first brace on.
    pub(super) length: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Json {
    /// Reads on, and answers how many bytes it looked at, the last of which ends or breaks the object if it
    /// does.
    pub(super) fn read(&mut self, text: &str) -> (usize, Result<(), Miss>) {
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
                return (at + 1, Err(Miss::Not));
            }
            if self.depth == 0 {
                return (at + 1, Ok(()));
            }
        }
        (text.len(), Err(Miss::Begun))
    }
}

/// Whether `text` is a JSON object that is not nested deeper than calls may be.
pub(super) fn is_object(text: &str) -> bool {
    Json::default().read(text).1.is_ok() && serde_json::from_str::<HashMap<String, &RawValue>>(text).is_ok()
}
