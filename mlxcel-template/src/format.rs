//! `text.format(…)`.

use super::arguments::Values;
use super::error::{Result, TemplateError, fail};
use super::evaluate::Evaluator;
use super::meter::TextBuilder;
use super::numerals::{float_text, int_text};
use super::origin::Origin;
use super::print::{write_repr, write_str};
use super::value::{Text, Value};

/// How fields are numbered, which a format does in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Numbering {
    Unknown,
    /// In their order: so many were there.
    Automatic(usize),
    ByHand,
}

/// What a field says behind its colon: `[[fill]align][sign][#][0][width][grouping][.precision][kind]`.
#[derive(Debug)]
struct Specification<'t> {
    fill: &'t str,
    align: Option<char>,
    sign: Option<char>,
    has_prefix: bool,
    /// Whether numbers are filled up behind the sign.
    has_zero: bool,
    width: usize,
    grouping: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

impl<'a> Evaluator<'a> {
    /// `text.format(…)`, with fields by position and by name, in which a specification may have fields, too.
    pub(super) fn format(&mut self, text: &Text<'a>, values: &Values<'a>) -> Result<Value<'a>> {
        self.fill_fields(text, values, &mut Numbering::Unknown, 2)
    }

    fn fill_fields(
        &mut self,
        text: &Text<'_>,
        values: &Values<'a>,
        numbering: &mut Numbering,
        levels: usize,
    ) -> Result<Value<'a>> {
        if levels == 0 {
            return fail!("the fields of a format are nested too deep");
        }
        let mut out = self.builder()?;
        let mut start = 0;
        while let Some(at) = text[start..].find(['{', '}']).map(|at| start + at) {
            out.push_part(text, start..at)?;
            let rest = &text[at + 1..];
            if rest.starts_with(&text[at..=at]) {
                out.push_part(text, at..at + 1)?;
                start = at + 2;
                continue;
            }
            let Some(length) = end_of_field(rest).filter(|_| text[at..].starts_with('{')) else {
                return fail!("a field of a format does not end");
            };
            let field = &rest[..length];
            start = at + length + 2;
            self.meter.work(4)?;
            let (name, how) = field.split_at(field.find(['!', ':']).unwrap_or(length));
            let value = self.field(name, values, numbering)?;
            let (conversion, specification) = match how.strip_prefix('!') {
                None => (None, how.strip_prefix(':').unwrap_or(how)),
                Some(how) => {
                    let (conversion, rest) = how.split_once(':').unwrap_or((how, ""));
                    (Some(conversion), rest)
                }
            };
            let value = match conversion {
                None => value,
                Some(kind @ ("s" | "r")) => {
                    let mut converted = self.builder()?;
                    let write = if kind == "s" { write_str } else { write_repr };
                    write(&mut converted, &value)?;
                    converted.finish()
                }
                Some(other) => return fail!("the conversion '!{other}' is not supported"),
            };
            if specification.is_empty() {
                write_str(&mut out, &value)?;
                continue;
            }
            let specification = Text::Borrowed(specification, text.origin());
            let specification = self.fill_fields(&specification, values, numbering, levels - 1)?;
            let specification = self.text_of(&specification)?;
            out.push_text(&self.specified(&value, &specification)?)?;
        }
        out.push_part(text, start..text.len())?;
        Ok(out.finish())
    }

    /// The value of a field: an argument by its number or name, or an item of it.
    fn field(&self, name: &str, values: &Values<'a>, numbering: &mut Numbering) -> Result<Value<'a>> {
        let (first, mut items) = name.split_at(name.find(['.', '[']).unwrap_or(name.len()));
        let missing = || TemplateError::new(format!("the format's field '{name}' has no value"));
        let number = first.parse::<usize>().ok();
        let value = if number.is_some() || first.is_empty() {
            let (at, now) = match (number, *numbering) {
                (None, Numbering::Automatic(next)) => (next, Numbering::Automatic(next + 1)),
                (None, Numbering::Unknown) => (0, Numbering::Automatic(1)),
                (Some(number), Numbering::ByHand | Numbering::Unknown) => (number, Numbering::ByHand),
                _ => return fail!("the fields of a format are numbered by hand and by order"),
            };
            *numbering = now;
            values.positional.get(at)
        } else {
            values.named.iter().find(|(name, _)| *name == first).map(|(_, value)| value)
        };
        let mut value = value.ok_or_else(missing)?.clone();
        while !items.is_empty() {
            let item = items.strip_prefix('[').and_then(|rest| rest.split_once(']')).ok_or_else(missing)?;
            let found = match (&value, item.0.parse::<usize>()) {
                (Value::Seq(seq), Ok(index)) => seq.items.get(index).cloned(),
                (Value::Dict(dict), Err(_)) => {
                    let mut key = self.builder()?;
                    key.push_as(item.0, Origin::Template)?;
                    dict.get(&key.finish(), &self.meter)?
                }
                _ => None,
            };
            (value, items) = (found.ok_or_else(missing)?, item.1);
        }
        Ok(value)
    }

    /// A value as a specification has it.
    fn specified(&self, value: &Value<'a>, specification: &Text<'_>) -> Result<Text<'a>> {
        let fault = || {
            let kind = value.type_name();
            TemplateError::new(format!("the format ':{}' of {kind} is not supported", &**specification))
        };
        let how = Specification::parse(specification).ok_or_else(fault)?;
        let mut piece = self.builder()?;
        // Where what is filled up with `=` begins.
        let mut sign = 0;
        match value {
            Value::Text(text) => {
                let is_of_number = how.sign.is_some() || how.has_prefix || how.grouping.is_some();
                if is_of_number || how.align == Some('=') || !matches!(how.kind, None | Some('s')) {
                    return Err(fault());
                }
                self.meter.read(text.len())?;
                let end = how.precision.and_then(|precision| text.char_indices().nth(precision));
                piece.push_part(text, 0..end.map_or(text.len(), |(at, _)| at))?;
            }
            Value::Bool(_) | Value::Int(_) | Value::Float(_) => {
                let (is_negative, prefix, digits) = how.number(value).ok_or_else(fault)?;
                let written = if is_negative { "-" } else { how.sign_of_positive() };
                sign = written.len() + prefix.len();
                piece.push(written)?;
                piece.push(prefix)?;
                piece.push_as(&digits, Origin::Template)?;
            }
            _ => return Err(fault()),
        }
        let text = piece.into_text();
        let missing = how.width.saturating_sub(text.chars().count());
        let is_text = value.as_text().is_some();
        let (before, inside) = match how.align_of(is_text) {
            '<' => (0, 0),
            '^' => (missing / 2, 0),
            '=' => (0, missing),
            _ => (missing, 0),
        };
        let fill = Text::Borrowed(how.fill, specification.origin());
        let mut out = self.builder()?;
        let counts = [before, inside, missing - before - inside];
        push_filled(&mut out, &text, (sign, text.len()), &fill, counts)?;
        Ok(out.into_text())
    }
}

/// Writes a text up to `end` with fills before it, behind its sign and behind it.
pub(super) fn push_filled(
    out: &mut TextBuilder,
    text: &Text<'_>,
    (sign, end): (usize, usize),
    fill: &Text<'_>,
    [before, inside, behind]: [usize; 3],
) -> Result<()> {
    out.repeat(fill, before)?;
    out.push_part(text, 0..sign)?;
    out.repeat(fill, inside)?;
    out.push_part(text, sign..end)?;
    out.repeat(fill, behind)
}

/// Where the field that `rest` begins with ends: at the bracket that closes it.
fn end_of_field(rest: &str) -> Option<usize> {
    let mut depth = 0;
    rest.bytes().position(|byte| {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 0 => return true,
            b'}' => depth -= 1,
            _ => {}
        }
        false
    })
}

impl<'t> Specification<'t> {
    fn parse(text: &'t str) -> Option<Self> {
        let is_align = |c: char| matches!(c, '<' | '>' | '=' | '^');
        let first = text.chars().next().map_or(0, char::len_utf8);
        let (mut fill, mut align, mut rest) = (None, None, text);
        if let Some(found) = text[first..].chars().next().filter(|c| is_align(*c)) {
            (fill, align, rest) = (Some(&text[..first]), Some(found), &text[first + 1..]);
        } else if let Some(behind) = text.strip_prefix(is_align) {
            (align, rest) = (text.chars().next(), behind);
        }
        let mut take = |accepted: &[char]| {
            let found = rest.chars().next().filter(|c| accepted.contains(c));
            rest = &rest[found.map_or(0, char::len_utf8)..];
            found
        };
        let sign = take(&['+', '-', ' ']);
        let has_prefix = take(&['#']).is_some();
        let has_zero = take(&['0']).is_some();
        let (width, mut behind) = digits(rest)?;
        let grouping = behind.chars().next().filter(|c| matches!(c, ',' | '_'));
        behind = &behind[grouping.map_or(0, char::len_utf8)..];
        let mut precision = None;
        if let Some(digits_behind) = behind.strip_prefix('.') {
            let (found, rest) = digits(digits_behind)?;
            (precision, behind) = (Some(found?), rest);
        }
        let mut kinds = behind.chars();
        let kind = kinds.next();
        if kinds.next().is_some() || precision.is_some_and(|precision| precision > 1000) {
            return None;
        }
        let width = width.unwrap_or(0);
        let fill = fill.unwrap_or(if has_zero { "0" } else { " " });
        Some(Self { fill, align, sign, has_prefix, has_zero, width, grouping, precision, kind })
    }

    fn align_of(&self, is_text: bool) -> char {
        self.align.unwrap_or(match (is_text, self.has_zero) {
            (true, _) => '<',
            (false, true) => '=',
            (false, false) => '>',
        })
    }

    fn sign_of_positive(&self) -> &'static str {
        match self.sign {
            Some('+') => "+",
            Some(' ') => " ",
            _ => "",
        }
    }

    /// Whether a number is negative, the prefix of its base, and its digits; `None` if it has no such format.
    fn number(&self, value: &Value<'_>) -> Option<(bool, &'static str, String)> {
        // Zeros would be grouped, too.
        if self.grouping.is_some() && self.fill == "0" && self.align_of(false) == '=' {
            return None;
        }
        let is_float = matches!(value, Value::Float(_));
        let (is_negative, prefix, digits) = match self.kind {
            None | Some('d' | 'b' | 'o' | 'x' | 'X' | 'n') if !is_float && self.precision.is_none() => {
                let value = value.as_int()?;
                let kind = self.kind.unwrap_or('d');
                let prefix = match kind {
                    'b' => "0b",
                    'o' => "0o",
                    'x' => "0x",
                    'X' => "0X",
                    _ => "",
                };
                (value < 0, if self.has_prefix { prefix } else { "" }, int_text(kind, value.unsigned_abs()))
            }
            None | Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%')
                if !self.has_prefix && (is_float || self.kind.is_some()) =>
            {
                let value = value.as_float()?;
                let is_negative = value.is_sign_negative() && !value.is_nan();
                (is_negative, "", float_text(self.kind, value.abs(), self.precision))
            }
            _ => return None,
        };
        let digits = match (self.grouping, self.kind) {
            (None, _) => digits,
            (Some('_'), Some('b' | 'o' | 'x' | 'X')) => grouped(&digits, 4, '_'),
            (Some(_), Some('b' | 'o' | 'x' | 'X' | 'n')) => return None,
            (Some(mark), _) => grouped(&digits, 3, mark),
        };
        Some((is_negative, prefix, digits))
    }
}

/// The number that `text` begins with, if there is one, and what follows it; `None` if it is too large.
pub(super) fn digits(text: &str) -> Option<(Option<usize>, &str)> {
    let length = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(length);
    let value = if digits.is_empty() { None } else { Some(digits.parse().ok()?) };
    Some((value, rest))
}

/// `text` with a mark between groups of its leading digits.
fn grouped(text: &str, size: usize, mark: char) -> String {
    let radix = if size == 3 { 10 } else { 16 };
    let length = text.find(|c: char| !c.is_digit(radix)).unwrap_or(text.len());
    let mut out = String::new();
    for (at, digit) in text[..length].char_indices() {
        if at > 0 && (length - at) % size == 0 {
            out.push(mark);
        }
        out.push(digit);
    }
    out + &text[length..]
}
