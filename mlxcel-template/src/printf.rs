//! `'%s' % value` and the filter `format`.

use super::error::{Result, TemplateError};
use super::evaluate::Evaluator;
use super::numerals::{float_text, int_text};
use super::origin::Origin;
use super::print::{write_repr, write_str};
use super::strings::{SPACE, ZERO};
use super::value::{Text, Value};

impl<'a> Evaluator<'a> {
    /// Python's `format % arguments`, for strings and numbers. `uses_all` says whether an argument that the
    /// format does not use is an error.
    pub(super) fn printf(
        &mut self,
        format: &Text<'_>,
        arguments: &[Value<'a>],
        uses_all: bool,
    ) -> Result<Value<'a>> {
        let mut out = self.builder()?;
        let mut arguments = arguments.iter();
        let mut start = 0;
        while let Some(at) = format[start..].find('%').map(|at| start + at) {
            out.push_part(format, start..at)?;
            let spec = &format[at + 1..];
            let flags = spec.len() - spec.trim_start_matches(['-', '+', ' ', '0', '#']).len();
            let (flags, spec) = spec.split_at(flags);
            let (width, spec) = number(spec)?;
            let (precision, spec) = match spec.strip_prefix('.') {
                Some(spec) => {
                    let (precision, spec) = number(spec)?;
                    (Some(precision), spec)
                }
                None => (None, spec),
            };
            let Some(kind) = spec.chars().next() else {
                return Err(TemplateError::new("a format ends after '%'"));
            };
            start = format.len() - spec.len() + kind.len_utf8();
            if kind == '%' {
                out.push_part(format, at..at + 1)?;
                continue;
            }
            let value =
                arguments.next().ok_or_else(|| TemplateError::new("a format has too few arguments"))?;
            let mut piece = self.builder()?;
            match kind {
                's' => write_str(&mut piece, value)?,
                'r' => write_repr(&mut piece, value)?,
                'd' | 'i' | 'u' | 'o' | 'x' | 'X' | 'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
                    let text = number_text(kind, value, precision)?;
                    if flags.contains('#') {
                        return Err(TemplateError::new("the flag '#' of a format is not supported"));
                    }
                    if flags.contains(['+', ' ']) && !text.starts_with('-') {
                        piece.push(if flags.contains('+') { "+" } else { " " })?;
                    }
                    piece.push_as(&text, Origin::Template)?;
                }
                _ => return Err(TemplateError::new(format!("the format '%{kind}' is not supported"))),
            }
            let text = piece.into_text();
            let mut end = text.len();
            if let (Some(precision), 's' | 'r') = (precision, kind) {
                end = text.char_indices().nth(precision).map_or(end, |(at, _)| at);
            }
            self.meter.read(end)?;
            let missing = width.saturating_sub(text[..end].chars().count());
            if flags.contains('-') {
                out.push_part(&text, 0..end)?;
                out.repeat(&SPACE, missing)?;
            } else if flags.contains('0') && !matches!(kind, 's' | 'r') {
                let sign = usize::from(text.starts_with(['-', '+', ' ']));
                out.push_part(&text, 0..sign)?;
                out.repeat(&ZERO, missing)?;
                out.push_part(&text, sign..end)?;
            } else {
                out.repeat(&SPACE, missing)?;
                out.push_part(&text, 0..end)?;
            }
        }
        if uses_all && arguments.next().is_some() {
            return Err(TemplateError::new("a format has too many arguments"));
        }
        out.push_part(format, start..format.len())?;
        Ok(out.finish())
    }
}

/// The number that `text` begins with, or zero, and what follows it.
fn number(text: &str) -> Result<(usize, &str)> {
    let length = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(length);
    let value = if digits.is_empty() { Some(0) } else { digits.parse().ok() };
    value.map(|value| (value, rest)).ok_or_else(|| TemplateError::new("a width is too large"))
}

fn number_text(kind: char, value: &Value<'_>, precision: Option<usize>) -> Result<String> {
    let no_number =
        || TemplateError::new(format!("the format '%{kind}' does not take {}", value.type_name()));
    if precision.is_some_and(|precision| precision > 1000) {
        return Err(TemplateError::new("a precision is too large"));
    }
    if matches!(kind, 'e' | 'E' | 'f' | 'F' | 'g' | 'G') {
        let value = value.as_float().ok_or_else(no_number)?;
        let sign = if value.is_sign_negative() && !value.is_nan() { "-" } else { "" };
        return Ok(sign.to_owned() + &float_text(Some(kind), value.abs(), precision));
    }
    let value = match value {
        Value::Float(value) if value.is_finite() && !matches!(kind, 'o' | 'x' | 'X') => {
            super::numbers::truncate(*value)?
        }
        value => value.as_int().ok_or_else(no_number)?,
    };
    let (sign, magnitude) = if value < 0 { ("-", value.unsigned_abs()) } else { ("", value.unsigned_abs()) };
    let digits = int_text(kind, magnitude);
    Ok(format!("{sign}{digits:0>width$}", width = precision.unwrap_or(0)))
}
