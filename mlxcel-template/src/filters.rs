//! Filters of texts, numbers and any value; those of lists are in [`lists`](super::lists).

use super::arguments::Values;
use super::ast::Filter;
use super::error::{Result, TemplateError};
use super::evaluate::Evaluator;
use super::numbers;
use super::origin::Origin;
use super::print::{JsonStyle, write_json, write_str};
use super::strings::{self, SPACE, Side};
use super::value::{Text, Value};

impl<'a> Evaluator<'a> {
    /// `value|filter`
    pub(super) fn filter(&mut self, value: Value<'a>, filter: &'a Filter) -> Result<Value<'a>> {
        let values = self.arguments(&filter.arguments)?;
        self.at(filter.line);
        self.filter_by_name(&filter.name, value, &values)
    }

    pub(super) fn filter_by_name(
        &mut self,
        name: &str,
        value: Value<'a>,
        values: &Values<'a>,
    ) -> Result<Value<'a>> {
        self.meter.work(1)?;
        values.read(&self.meter)?;
        match name {
            "default" | "d" => {
                let [default, boolean] = values.take(name, ["default_value", "boolean"])?;
                let is_missing = value.is_undefined() || (boolean.is_true() && !value.is_true());
                Ok(match (is_missing, default) {
                    (false, _) => value,
                    (true, Value::Undefined) if values.positional.is_empty() => Value::text(""),
                    (true, default) => default,
                })
            }
            "tojson" => self.tojson(&value, values),
            "length" | "count" => {
                let [] = values.take(name, [])?;
                self.length(&value)
            }
            "string" => Ok(Value::Text(self.text_of(&value)?)),
            "abs" | "int" | "float" | "round" => self.number_filter(name, &value, values),
            "trim" | "upper" | "lower" | "capitalize" | "title" | "replace" | "indent" | "center"
            | "escape" | "e" | "forceescape" | "safe" | "wordcount" | "format" | "truncate" => {
                self.text_filter(name, &value, values)
            }
            _ => self.list_filter(name, value, values),
        }
    }

    /// `str(value)`
    pub(super) fn text_of(&self, value: &Value<'a>) -> Result<Text<'a>> {
        if let Value::Text(text) = value {
            return Ok(text.clone());
        }
        let mut out = self.builder()?;
        write_str(&mut out, value)?;
        match out.finish() {
            Value::Text(text) => Ok(text),
            _ => Err(TemplateError::new("a text is no text")),
        }
    }

    fn length(&self, value: &Value<'a>) -> Result<Value<'a>> {
        let length = match value {
            Value::Undefined => 0,
            Value::Text(text) => {
                self.meter.read(text.len())?;
                text.chars().count()
            }
            Value::Seq(seq) => seq.items.len(),
            Value::Dict(dict) => dict.entries.len(),
            _ => return Err(TemplateError::new(format!("{} has no length", value.type_name()))),
        };
        Ok(Value::Int(length as i128))
    }

    fn number_filter(&self, name: &str, value: &Value<'a>, values: &Values<'a>) -> Result<Value<'a>> {
        match name {
            "abs" => {
                let [] = values.take(name, [])?;
                match value {
                    Value::Float(value) => Ok(Value::Float(value.abs())),
                    _ => {
                        let absolute = value.as_int().and_then(i128::checked_abs).map(Value::Int);
                        absolute.ok_or_else(|| {
                            TemplateError::new(format!("'abs' does not take {}", value.type_name()))
                        })
                    }
                }
            }
            "int" => {
                let [default, base] = values.take(name, ["default", "base"])?;
                let base = u32::try_from(base.int_or(10)?).unwrap_or(0);
                let parsed = match value {
                    Value::Text(text) => numbers::parse_int(text, base)
                        .or_else(|| numbers::parse_float(text).and_then(numbers::truncate)),
                    Value::Float(value) => numbers::truncate(*value),
                    value => value.as_int(),
                };
                Ok(parsed.map_or_else(|| default.given().cloned().unwrap_or(Value::Int(0)), Value::Int))
            }
            "float" => {
                let [default] = values.take(name, ["default"])?;
                let parsed = match value {
                    Value::Text(text) => numbers::parse_float(text),
                    value => value.as_float(),
                };
                Ok(parsed.map_or_else(|| default.given().cloned().unwrap_or(Value::Float(0.0)), Value::Float))
            }
            _ => {
                let [precision, method] = values.take(name, ["precision", "method"])?;
                let Some(number) = value.as_float() else {
                    return Err(TemplateError::new(format!("'round' does not take {}", value.type_name())));
                };
                let precision = precision.int_or(0)?;
                let unit = 10f64.powi(precision.clamp(-400, 400) as i32);
                match method.text_or("common")? {
                    // Python leaves an integer one.
                    "common" if value.as_int().is_some() && precision >= 0 => Ok(value.clone()),
                    "common" => Ok(Value::Float(numbers::round(number, precision))),
                    "ceil" => Ok(Value::Float((number * unit).ceil() / unit)),
                    "floor" => Ok(Value::Float((number * unit).floor() / unit)),
                    _ => Err(TemplateError::new("the method is common, ceil or floor")),
                }
            }
        }
    }

    fn text_filter(&mut self, name: &str, value: &Value<'a>, values: &Values<'a>) -> Result<Value<'a>> {
        let text = self.text_of(value)?;
        match name {
            "trim" => {
                let [characters] = values.take(name, ["chars"])?;
                self.strip(&text, &characters, (true, true))
            }
            "replace" => {
                let [old, new, count] = values.take(name, ["old", "new", "count"])?;
                let (old, new) = (self.text_of(&old)?, self.text_of(&new)?);
                let count = count.given().map_or(Ok(-1), |count| count.int_or(-1))?;
                self.replace(&text, &old, &new, count)
            }
            "indent" => self.indent(&text, values),
            "center" => {
                let [width] = values.take(name, ["width"])?;
                self.pad(&text, width.count_or(80)?, &SPACE, Side::Both)
            }
            "format" => {
                if !values.named.is_empty() {
                    return Err(TemplateError::new("'format' takes no arguments with names"));
                }
                self.printf(&text, &values.positional)
            }
            "truncate" => self.truncate(&text, values),
            _ => {
                let [] = values.take(name, [])?;
                match name {
                    "upper" => self.upper(&text),
                    "lower" => self.lower(&text),
                    "capitalize" => self.capitalize(&text),
                    "title" => self.title(&text, |c| {
                        super::lexer::is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<')
                    }),
                    "wordcount" => {
                        self.meter.read(text.len())?;
                        let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
                        Ok(Value::Int(words.filter(|word| !word.is_empty()).count() as i128))
                    }
                    "safe" => Ok(Value::Text(text)),
                    _ => self.map_text(&text, |character, out| match character {
                        '&' => out.push_str("&amp;"),
                        '<' => out.push_str("&lt;"),
                        '>' => out.push_str("&gt;"),
                        '\'' => out.push_str("&#39;"),
                        '"' => out.push_str("&#34;"),
                        _ => out.push(character),
                    }),
                }
            }
        }
    }

    fn indent(&self, text: &Text<'a>, values: &Values<'a>) -> Result<Value<'a>> {
        let [width, first, blank] = values.take("indent", ["width", "first", "blank"])?;
        let (unit, count) = match &width {
            Value::Text(unit) => (unit.clone(), 1),
            width => (SPACE, width.count_or(4)?),
        };
        let mut out = self.builder()?;
        if first.is_true() {
            out.repeat(&unit, count)?;
        }
        // A line break at the end stays, as if a line followed that is empty.
        let ends = text.ends_with(['\n', '\r']);
        let lines = strings::lines(text).chain(ends.then_some(text.len()..text.len()));
        for (index, line) in lines.enumerate() {
            if index > 0 {
                out.push("\n")?;
                if !line.is_empty() || blank.is_true() {
                    out.repeat(&unit, count)?;
                }
            }
            out.push_part(text, line)?;
        }
        Ok(out.finish())
    }

    fn truncate(&self, text: &Text<'a>, values: &Values<'a>) -> Result<Value<'a>> {
        let [length, kill, end, leeway] =
            values.take("truncate", ["length", "killwords", "end", "leeway"])?;
        let (length, leeway) =
            (length.count_or(255)?, leeway.given().map_or(Ok(5), |leeway| leeway.count_or(5))?);
        let end = match end {
            Value::Undefined => Text::Borrowed("...", Origin::Template),
            end => self.text_of(&end)?,
        };
        self.meter.read(text.len() + end.len())?;
        let Some(kept) = length.checked_sub(end.chars().count()) else {
            return Err(TemplateError::new("the length is less than that of the end"));
        };
        if text.chars().count() <= length.saturating_add(leeway) {
            return Ok(Value::Text(text.clone()));
        }
        let kept = text.char_indices().nth(kept).map_or(text.len(), |(at, _)| at);
        let kept = if kill.is_true() { kept } else { text[..kept].rfind(' ').unwrap_or(kept) };
        let mut out = self.builder()?;
        out.push_part(text, 0..kept)?;
        out.push_text(&end)?;
        Ok(out.finish())
    }

    /// `value|tojson`, which transformers defines as `json.dumps`, not escaped for HTML.
    fn tojson(&self, value: &Value<'a>, values: &Values<'a>) -> Result<Value<'a>> {
        let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
        let [ascii, indent, separators, sorted] = values.take("tojson", names)?;
        let indent = match indent.given() {
            None => None,
            Some(Value::Text(unit)) => Some(unit.clone()),
            Some(width) => {
                let mut unit = self.builder()?;
                unit.repeat(&SPACE, width.count_or(0)?)?;
                Some(unit.into_text())
            }
        };
        let (item, key) = match separators.given() {
            None => {
                let item = if indent.is_some() { "," } else { ", " };
                (Text::Borrowed(item, Origin::Template), Text::Borrowed(": ", Origin::Template))
            }
            Some(Value::Seq(seq)) => match seq.items.as_slice() {
                [Value::Text(item), Value::Text(key)] => (item.clone(), key.clone()),
                _ => return Err(TemplateError::new("'tojson' takes two separators")),
            },
            Some(_) => return Err(TemplateError::new("'tojson' takes two separators")),
        };
        let style = JsonStyle { indent, item, key, ascii: ascii.is_true(), sorted: sorted.is_true() };
        let mut out = self.builder()?;
        write_json(&mut out, value, &style, 0)?;
        Ok(out.finish())
    }
}
