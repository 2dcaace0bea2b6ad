//! `'%s' % value` and the filter `format`.

use super::error::{Result, TemplateError, fail};
use super::evaluate::Evaluator;
use super::format::{digits, push_filled};
use super::numerals::{float_text, int_text};
use super::origin::Origin;
use super::print::{write_repr, write_str};
use super::strings::{SPACE, ZERO};
use super::value::{Text, Value};

impl<'a> Evaluator<'a> {
    /// Python's `format % arguments`, for strings and numbers. `uses_all` says whether an argument that the
    /// format does not use is an error; where it is none, `%(name)s` is a value of the dictionary that is the
    /// argument.
    pub(super) fn printf(
        &mut self,
        format: &Text<'_>,
        arguments: &[Value<'a>],
        uses_all: bool,
    ) -> Result<Value<'a>> {
        let mut out = self.builder()?;
        let fields = match arguments {
            [Value::Dict(fields)] if !uses_all => Some(fields),
            _ => None,
        };
        let mut arguments = arguments.iter().cloned();
        let mut start = 0;
        while let Some(at) = format[start..].find('%').map(|at| start + at) {
            out.push_part(format, start..at)?;
            let spec = &format[at + 1..];
            let (name, spec) = match spec.strip_prefix('(').map(|rest| rest.split_once(')')) {
                Some(Some((name, spec))) => (Some(name), spec),
                Some(None) => return fail!("a name in a format does not end"),
                None => (None, spec),
            };
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
            let Some(kind) = spec.chars().next() else { return fail!("a format ends after '%'") };
            start = format.len() - spec.len() + kind.len_utf8();
            if kind == '%' {
                out.push_part(format, at..at + 1)?;
                continue;
            }
            let value = match (name, fields) {
                (None, _) => arguments.next(),
                (Some(name), Some(fields)) => {
                    // As in Python, the dictionary itself is no value then.
                    arguments.next();
                    fields.get_text(name, &self.meter)?
                }
                (Some(_), None) => return fail!("a format with names takes a dictionary"),
            };
            let Some(value) = value else { return fail!("a format has too few arguments") };
            let mut piece = self.builder()?;
            match kind {
                's' => write_str(&mut piece, &value)?,
                'r' => write_repr(&mut piece, &value)?,
                'd' | 'i' | 'u' | 'o' | 'x' | 'X' | 'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
                    let text = number_text(kind, &value, precision)?;
                    if flags.contains('#') {
                        return fail!("the flag '#' of a format is not supported");
                    }
                    if flags.contains(['+', ' ']) && !text.starts_with('-') {
                        piece.push(if flags.contains('+') { "+" } else { " " })?;
                    }
                    piece.push_as(&text, Origin::Template)?;
                }
                _ => return fail!("the format '%{kind}' is not supported"),
            }
            let text = piece.into_text();
            let mut end = text.len();
            if let (Some(precision), 's' | 'r') = (precision, kind) {
                end = text.char_indices().nth(precision).map_or(end, |(at, _)| at);
            }
            self.meter.read(end)?;
            let missing = width.saturating_sub(text[..end].chars().count());
            let sign = usize::from(!matches!(kind, 's' | 'r') && text.starts_with(['-', '+', ' ']));
            let (fill, before, inside) = match kind {
                _ if flags.contains('-') => (&SPACE, 0, 0),
                's' | 'r' => (&SPACE, missing, 0),
                _ if flags.contains('0') => (&ZERO, 0, missing),
                _ => (&SPACE, missing, 0),
            };
            push_filled(&mut out, &text, (sign, end), fill, [before, inside, missing - before - inside])?;
        }
        if uses_all && arguments.next().is_some() {
            return fail!("a format has too many arguments");
        }
        out.push_part(format, start..format.len())?;
        Ok(out.finish())
    }
}

/// The number that `text` begins with, or zero, and what follows it.
fn number(text: &str) -> Result<(usize, &str)> {
    let number = digits(text).map(|(value, rest)| (value.unwrap_or(0), rest));
    number.ok_or_else(|| TemplateError::new("a width is too large"))
}

fn number_text(kind: char, value: &Value<'_>, precision: Option<usize>) -> Result<String> {
    let no_number =
        || TemplateError::new(format!("the format '%{kind}' does not take {}", value.type_name()));
    if precision.is_some_and(|precision| precision > 1000) {
        return fail!("a precision is too large");
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
    let text = int_text(kind, magnitude);
    Ok(format!("{sign}{text:0>width$}", width = precision.unwrap_or(0)))
}
