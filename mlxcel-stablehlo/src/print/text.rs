//! Symbols, strings, identifiers and attributes as MLIR spells them.

use std::collections::HashSet;
use std::fmt::{self, Write};

use super::literal::float;
use crate::module::Attribute;
use crate::types::ElementType;

/// A symbol reference: `@name`, quoted where needed.
pub(super) struct Symbol<'a>(pub(super) &'a str);

impl fmt::Display for Symbol<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{}", Word(self.0))
    }
}

/// A name: bare where MLIR reads it so, quoted otherwise.
struct Word<'a>(&'a str);

impl fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let starts = self.0.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        let bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '.');
        if starts && self.0.chars().all(bare) { f.write_str(self.0) } else { Quoted(self.0).fmt(f) }
    }
}

/// A string literal.
pub(super) struct Quoted<'a>(pub(super) &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for byte in self.0.bytes() {
            match byte {
                b'"' | b'\\' | 0..=0x1f | 0x7f.. => write!(f, "\\{byte:02X}")?,
                _ => f.write_char(char::from(byte))?,
            }
        }
        f.write_char('"')
    }
}

/// A value name for `name`, unlike those `taken` and unlike numbers.
pub(super) fn identifier(name: &str, taken: &mut HashSet<String>) -> String {
    let mut base: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if !base.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        base.insert_str(0, "arg");
    }
    let mut unique = base.clone();
    let mut number = 0;
    while !taken.insert(unique.clone()) {
        unique = format!("{base}_{number}");
        number += 1;
    }
    unique
}

/// `{name = value, …}`.
pub(super) struct Dictionary<'a>(pub(super) &'a [(String, Attribute)]);

impl fmt::Display for Dictionary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('{')?;
        for (i, (name, value)) in self.0.iter().enumerate() {
            write!(f, "{}{} = ", if i == 0 { "" } else { ", " }, Word(name))?;
            match value {
                Attribute::Int(value) => write!(f, "{value} : i64")?,
                Attribute::Float(value) => write!(f, "{} : f32", float(ElementType::F32, value.to_bits()))?,
                Attribute::Text(value) => Quoted(value).fmt(f)?,
                Attribute::Bool(value) => write!(f, "{value}")?,
            }
        }
        f.write_char('}')
    }
}

/// `[a, b]`.
pub(super) fn bracketed<T: fmt::Display>(list: &[T]) -> String {
    let items: Vec<String> = list.iter().map(ToString::to_string).collect();
    format!("[{}]", items.join(", "))
}
