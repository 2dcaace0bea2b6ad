//! Values as text: Python's `str` and `repr`, and `json.dumps`.

use std::fmt::Write;

use super::error::{Result, fail};
use super::meter::TextBuilder;
use super::origin::Origin;
use super::value::{Function, Text, Value};

/// How `json.dumps` is asked to write.
pub(super) struct JsonStyle<'a> {
    pub(super) indent: Option<Text<'a>>,
    pub(super) item: Text<'a>,
    pub(super) key: Text<'a>,
    pub(super) ascii: bool,
    pub(super) sorted: bool,
}

/// Python's `str(value)`; nothing for an undefined one.
pub(super) fn write_str(out: &mut TextBuilder, value: &Value<'_>) -> Result<()> {
    match value {
        Value::Undefined => Ok(()),
        Value::Text(text) => out.push_text(text),
        _ => write_repr(out, value),
    }
}

/// Python's `repr(value)`.
pub(super) fn write_repr(out: &mut TextBuilder, value: &Value<'_>) -> Result<()> {
    match value {
        Value::Undefined => out.push("Undefined"),
        Value::None => out.push("None"),
        Value::Bool(value) => out.push(if *value { "True" } else { "False" }),
        Value::Int(value) => out.push_as(&value.to_string(), Origin::Template),
        Value::Float(value) => out.push_as(&float(*value), Origin::Template),
        Value::Text(text) if text.is_marked() => {
            out.push("Markup(")?;
            write_quoted(out, text)?;
            out.push(")")
        }
        Value::Text(text) => write_quoted(out, text),
        Value::Seq(seq) => {
            let (open, close) = if seq.tuple { ("(", ")") } else { ("[", "]") };
            out.push(open)?;
            for (index, item) in seq.items.iter().enumerate() {
                if index > 0 {
                    out.push(", ")?;
                }
                write_repr(out, item)?;
            }
            if seq.tuple && seq.items.len() == 1 {
                out.push(",")?;
            }
            out.push(close)
        }
        Value::Dict(dict) => {
            out.push("{")?;
            for (index, (key, value)) in dict.entries.iter().enumerate() {
                if index > 0 {
                    out.push(", ")?;
                }
                write_repr(out, key)?;
                out.push(": ")?;
                write_repr(out, value)?;
            }
            out.push("}")
        }
        // What it holds may be the namespace itself.
        Value::Namespace(_) => out.push("<Namespace>"),
        Value::Loop(_) => out.push("<LoopContext>"),
        Value::Macro(_) => out.push("<Macro>"),
        Value::Function(Function::Range) => out.push("<function range>"),
        Value::Function(_) | Value::Method => out.push("<function>"),
    }
}

/// A float as Python prints it: the shortest digits that read back, with an exponent from 1e16 on and below
/// 1e-4.
pub(super) fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let magnitude = value.abs();
    if value == 0.0 || (1e-4..1e16).contains(&magnitude) {
        let text = format!("{value:?}");
        let decimals = text.split_once('.').map_or(0, |(_, decimals)| decimals.len());
        return even(format!("{value:.decimals$}"), text, value);
    }
    let text = format!("{value:e}");
    let decimals = text.bytes().take_while(|&byte| byte != b'e').filter(u8::is_ascii_digit).count() - 1;
    let text = even(format!("{value:.decimals$e}"), text, value);
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    exponential(digits, exponent)
}

/// Digits and an exponent of at least two digits, with its sign.
pub(super) fn exponential(digits: &str, exponent: &str) -> String {
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    format!("{digits}e{sign}{exponent:0>2}")
}

/// Of two shortest texts that are equally near to a float, Python prints the one that ends in an even digit;
/// the standard library does so only for a given number of digits, whose text need not read back.
fn even(rounded: String, shortest: String, value: f64) -> String {
    if rounded.parse() == Ok(value) { rounded } else { shortest }
}

fn write_quoted(out: &mut TextBuilder, text: &Text<'_>) -> Result<()> {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push_char(quote, Origin::Template)?;
    let mut escaped = String::new();
    for (character, origin) in text.characters() {
        match character {
            '\\' => out.push_as("\\\\", origin)?,
            '\n' => out.push_as("\\n", origin)?,
            '\r' => out.push_as("\\r", origin)?,
            '\t' => out.push_as("\\t", origin)?,
            _ if character == quote => {
                out.push_as("\\", origin)?;
                out.push_char(character, origin)?;
            }
            _ if is_printable(character) => out.push_char(character, origin)?,
            _ => {
                escaped.clear();
                // A string takes what is written to it.
                let _ = match u32::from(character) {
                    code @ 0..=0xff => write!(escaped, "\\x{code:02x}"),
                    code @ 0x100..=0xffff => write!(escaped, "\\u{code:04x}"),
                    code => write!(escaped, "\\U{code:08x}"),
                };
                out.push_as(&escaped, origin)?;
            }
        }
    }
    out.push_char(quote, Origin::Template)
}

/// Whether Python's `repr` writes a character as it is. It escapes control and format characters, spaces other
/// than the usual one, and code points that are private or not assigned.
fn is_printable(character: char) -> bool {
    if character.is_ascii() {
        return !character.is_ascii_control();
    }
    // The standard library's `Debug` escapes the same characters. It also escapes a combining character, but
    // only at the start of a text.
    let mut text = [b' '; 5];
    let length = character.encode_utf8(&mut text[1..]).len();
    std::str::from_utf8(&text[..=length]).is_ok_and(|text| text.escape_debug().nth(1) != Some('\\'))
}

/// `json.dumps(value)`, inside `depth` others.
pub(super) fn write_json(
    out: &mut TextBuilder,
    value: &Value<'_>,
    style: &JsonStyle<'_>,
    depth: usize,
) -> Result<()> {
    match value {
        Value::None => out.push("null"),
        Value::Bool(value) => out.push(if *value { "true" } else { "false" }),
        Value::Int(value) => out.push_as(&value.to_string(), Origin::Template),
        Value::Float(value) => out.push_as(&json_float(*value), Origin::Template),
        Value::Text(text) => write_json_string(out, text, style.ascii),
        Value::Seq(seq) => {
            out.push("[")?;
            for (index, item) in seq.items.iter().enumerate() {
                separate(out, style, index, depth + 1)?;
                write_json(out, item, style, depth + 1)?;
            }
            finish(out, style, seq.items.len(), depth)?;
            out.push("]")
        }
        Value::Dict(dict) => {
            out.push("{")?;
            let mut entries: Vec<_> = dict.entries.iter().collect();
            if style.sorted {
                if entries.iter().any(|(key, _)| key.as_text().is_none()) {
                    return fail!("tojson sorts keys that are strings");
                }
                entries.sort_by(|(a, _), (b, _)| a.as_text().cmp(&b.as_text()));
            }
            for (index, (key, value)) in entries.into_iter().enumerate() {
                separate(out, style, index, depth + 1)?;
                write_json_key(out, key, style.ascii)?;
                out.push_text(&style.key)?;
                write_json(out, value, style, depth + 1)?;
            }
            finish(out, style, dict.entries.len(), depth)?;
            out.push("}")
        }
        _ => fail!("JSON cannot hold {}", value.type_name()),
    }
}

/// Goes to element `index` of a container.
fn separate(out: &mut TextBuilder, style: &JsonStyle<'_>, index: usize, depth: usize) -> Result<()> {
    if index > 0 {
        out.push_text(&style.item)?;
    }
    break_line(out, style, depth)
}

fn finish(out: &mut TextBuilder, style: &JsonStyle<'_>, count: usize, depth: usize) -> Result<()> {
    if count == 0 { Ok(()) } else { break_line(out, style, depth) }
}

fn break_line(out: &mut TextBuilder, style: &JsonStyle<'_>, depth: usize) -> Result<()> {
    let Some(indent) = &style.indent else { return Ok(()) };
    out.push("\n")?;
    out.repeat(indent, depth)
}

fn json_float(value: f64) -> String {
    let text = float(value);
    if value.is_finite() { text } else { text.replace("nan", "NaN").replace("inf", "Infinity") }
}

fn write_json_key(out: &mut TextBuilder, key: &Value<'_>, ascii: bool) -> Result<()> {
    let text = match key {
        Value::Text(text) => return write_json_string(out, text, ascii),
        Value::None => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Float(value) => json_float(*value),
        _ => return fail!("JSON has no key that is {}", key.type_name()),
    };
    write_json_string(out, &Text::Borrowed(&text, Origin::Template), ascii)
}

fn write_json_string(out: &mut TextBuilder, text: &Text<'_>, ascii: bool) -> Result<()> {
    out.push("\"")?;
    for (piece, origin) in text.pieces(0..text.len()) {
        write_json_piece(out, piece, origin, ascii)?;
    }
    out.push("\"")
}

fn write_json_piece(out: &mut TextBuilder, text: &str, origin: Origin, ascii: bool) -> Result<()> {
    let mut plain = 0;
    let mut escaped = String::new();
    for (at, character) in text.char_indices() {
        escaped.clear();
        match character {
            '"' => escaped.push_str("\\\""),
            '\\' => escaped.push_str("\\\\"),
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            '\t' => escaped.push_str("\\t"),
            '\x08' => escaped.push_str("\\b"),
            '\x0c' => escaped.push_str("\\f"),
            _ if character < ' ' || (ascii && !(' '..='\x7e').contains(&character)) => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    // A string takes what is written to it.
                    let _ = write!(escaped, "\\u{unit:04x}");
                }
            }
            _ => continue,
        }
        out.push_as(&text[plain..at], origin)?;
        out.push_as(&escaped, origin)?;
        plain = at + character.len_utf8();
    }
    out.push_as(&text[plain..], origin)
}
