//! Arguments that a call has as keywords with literals: where they end, and what they are in JSON.

use serde_json::Value;

use super::attempt::{DEEPEST, Miss};
use super::values::Written;
use crate::chat::style::Literals;
use crate::reasoning::begun;

/// Keyword arguments of which the end is looked for, the bracket that closes the call. Outside of strings they
/// have no `<`, so that a mark of a call ends an attempt at them.
#[derive(Clone, Debug)]
pub(super) struct Keywords {
    assign: &'static str,
    literals: Literals,
    /// How many bytes were read, and how many of them up to the last end of a string.
    pub(super) length: usize,
    pub(super) passed: usize,
    depth: usize,
    /// What ends the string that is being read.
    string: Option<&'static str>,
    escaped: bool,
}

impl Keywords {
    pub(super) fn new(assign: &'static str, literals: Literals) -> Self {
        Self { assign, literals, length: 0, passed: 0, depth: 0, string: None, escaped: false }
    }

    /// Whether a string has begun that has no end yet.
    pub(super) fn is_in_string(&self) -> bool {
        self.string.is_some()
    }

    /// Reads on, and answers how many bytes were read: the bracket that ends the arguments is none of them.
    pub(super) fn read(&mut self, text: &str) -> (usize, Result<(), Miss>) {
        let mut at = 0;
        let found = loop {
            let rest = &text[at..];
            let (length, found) = if self.is_in_string() { self.read_string(rest) } else { self.step(rest) };
            at += length;
            self.length += length;
            if let Some(found) = found {
                break found;
            }
        };
        (at, found)
    }

    /// Reads on in a string.
    fn read_string(&mut self, text: &str) -> (usize, Option<Result<(), Miss>>) {
        let Some(mark) = self.string else { return (0, None) };
        let end = if self.literals == Literals::Python {
            text.bytes().position(|byte| {
                let ends = !self.escaped && byte == mark.as_bytes()[0];
                self.escaped = !self.escaped && byte == b'\\';
                ends
            })
        } else {
            text.find(mark)
        };
        let Some(end) = end else { return (text.len() - begun(text, mark), Some(Err(Miss::Begun))) };
        self.string = None;
        self.passed = self.length + end + mark.len();
        (end + mark.len(), None)
    }

    /// Reads the beginning of a string, or a character outside of them.
    fn step(&mut self, text: &str) -> (usize, Option<Result<(), Miss>>) {
        let Some(character) = text.chars().next() else { return (0, Some(Err(Miss::Begun))) };
        if let Some(quote) = self.literals.quotes().iter().find(|quote| text.starts_with(**quote)) {
            self.string = Some(*quote);
            return (quote.len(), None);
        }
        match character {
            '<' if self.literals.quotes().iter().any(|quote| quote.starts_with(text)) => {
                return (0, Some(Err(Miss::Begun)));
            }
            '<' => return (0, Some(Err(Miss::Not))),
            '{' | '[' | '(' if self.depth == DEEPEST => return (0, Some(Err(Miss::Not))),
            '{' | '[' | '(' => self.depth += 1,
            '}' | ']' | ')' if self.depth == 0 => return (0, Some(Ok(()))),
            '}' | ']' | ')' => self.depth -= 1,
            _ => {}
        }
        (character.len_utf8(), None)
    }

    /// The names and values of `text`, which was read; `None` if it is none of keyword arguments.
    pub(super) fn fields(&self, text: &str) -> Option<Vec<(String, Written)>> {
        let mut reader = Reader { rest: text, literals: self.literals };
        let mut fields = Vec::new();
        reader.list("", |reader| {
            let (name, rest) = reader.rest.split_once(self.assign)?;
            let name = reader
                .literals
                .quotes()
                .iter()
                .find_map(|quote| unquoted(name.trim(), quote))
                .unwrap_or(name);
            reader.rest = rest;
            fields.push((name.trim().to_owned(), Written::Json(reader.value()?)));
            Some(())
        })?;
        reader.rest.is_empty().then_some(fields)
    }
}

impl Literals {
    /// The marks that strings begin and end with.
    fn quotes(&self) -> &[&'static str] {
        match self {
            Self::Python => &["\"", "'"],
            Self::Marked(mark) => std::slice::from_ref(mark),
        }
    }
}

fn unquoted<'t>(text: &'t str, quote: &str) -> Option<&'t str> {
    text.strip_prefix(quote)?.strip_suffix(quote)
}

/// Reads literals from the beginning of a text.
struct Reader<'t> {
    rest: &'t str,
    literals: Literals,
}

impl Reader<'_> {
    /// The next literal as JSON; `None` if there is none. It is not deeper than [`Keywords`] go.
    fn value(&mut self) -> Option<String> {
        self.rest = self.rest.trim_start();
        let (mut written, mut items) = (String::new(), Vec::new());
        if self.takes("[") {
            self.list("]", |reader| reader.value().map(|value| items.push(value)))?;
            written.push_str(&format!("[{}]", items.join(", ")));
        } else if self.takes("{") {
            self.list("}", |reader| {
                items.push(format!("{}: {}", reader.name()?, reader.value()?));
                Some(())
            })?;
            written.push_str(&format!("{{{}}}", items.join(", ")));
        } else if let Some(text) = self.string() {
            written = Value::from(text?).to_string();
        } else {
            let end =
                self.rest.find(|character: char| ",:)]}".contains(character) || character.is_whitespace());
            let (word, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
            self.rest = rest;
            written.push_str(match word {
                "True" | "true" => "true",
                "False" | "false" => "false",
                "None" | "null" => "null",
                number => serde_json::from_str::<serde_json::Number>(number).ok().map(|_| number)?,
            });
        }
        Some(written)
    }

    /// The name of a field as JSON, and the colon behind it.
    fn name(&mut self) -> Option<String> {
        self.rest = self.rest.trim_start();
        let name = match self.string() {
            Some(name) => name?,
            None if self.literals == Literals::Python => return None,
            None => {
                let (name, rest) = self.rest.split_at(self.rest.find(':')?);
                self.rest = rest;
                name.trim().to_owned()
            }
        };
        self.rest = self.rest.trim_start();
        self.takes(":").then(|| Value::from(name).to_string())
    }

    /// Items with commas between them, and the mark that ends them.
    fn list(&mut self, end: &str, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.rest = self.rest.trim_start();
        if self.rest.is_empty() || (!end.is_empty() && self.rest.starts_with(end)) {
            return self.takes(end).then_some(());
        }
        loop {
            item(self)?;
            self.rest = self.rest.trim_start();
            if !self.takes(",") {
                return self.takes(end).then_some(());
            }
        }
    }

    /// Skips `mark` if it is next.
    fn takes(&mut self, mark: &str) -> bool {
        let rest = self.rest.strip_prefix(mark);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// The string that is next: `Some(None)` if it has no end or an escape that is none.
    fn string(&mut self) -> Option<Option<String>> {
        let literals = self.literals;
        let mark = literals.quotes().iter().find(|mark| self.rest.starts_with(**mark))?;
        self.rest = &self.rest[mark.len()..];
        if literals == Literals::Python {
            return Some(self.python_string(mark));
        }
        let text = self.rest.split_once(mark).map(|(text, rest)| {
            self.rest = rest;
            text.to_owned()
        });
        Some(text)
    }

    /// The remainder of a Python string. The two halves of a surrogate pair, as JSON has them, are one character.
    fn python_string(&mut self, mark: &str) -> Option<String> {
        let (mut text, mut high) = (String::new(), None);
        loop {
            let character = self.character()?;
            let was_high: Option<u32> = high.take();
            // Half a pair is no character.
            if was_high.is_some() && !(character == '\\' && self.rest.starts_with('u')) {
                return None;
            }
            if character != '\\' {
                if mark.starts_with(character) {
                    return Some(text);
                }
                text.push(character);
                continue;
            }
            let escape = self.character()?;
            let meant = match escape {
                '\n' => continue,
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                'b' => '\u{8}',
                'f' => '\u{c}',
                '\\' | '\'' | '"' | '/' => escape,
                'x' | 'u' | 'U' => {
                    let digits = match escape {
                        'x' => 2,
                        'u' => 4,
                        _ => 8,
                    };
                    let code = (0..digits).try_fold(0_u32, |code, _| {
                        code.checked_mul(16)?.checked_add(self.character()?.to_digit(16)?)
                    })?;
                    match (code, was_high) {
                        (0xd800..=0xdbff, None) => {
                            high = Some(code);
                            continue;
                        }
                        (0xdc00..=0xdfff, Some(high)) => {
                            char::from_u32(0x1_0000 + ((high - 0xd800) << 10) + (code - 0xdc00))?
                        }
                        (_, None) => char::from_u32(code)?,
                        (_, Some(_)) => return None,
                    }
                }
                // Python keeps the backslash of what is no escape.
                other => {
                    text.push('\\');
                    other
                }
            };
            text.push(meant);
        }
    }

    fn character(&mut self) -> Option<char> {
        let character = self.rest.chars().next()?;
        self.rest = &self.rest[character.len_utf8()..];
        Some(character)
    }
}
