//! Filters of texts, numbers and any value; those of lists are in [`lists`](super::lists).

use super::arguments::Values;
use super::ast::Filter;
use super::error::{Result, TemplateError, fail};
use super::evaluate::Evaluator;
use super::marked::refuse_marked;
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
            _ => fail!("a text is no text"),
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
            Value::Loop(index) if *index < self.loops.len() => self.loops[*index].items.items.len(),
            _ => return fail!("{} has no length", value.type_name()),
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
                let finite = |value: f64| value.is_finite().then_some(value);
                let parsed = match value {
                    Value::Text(text) => match numbers::parse_int(text, base) {
                        Some(value) => Some(value),
                        None => {
                            numbers::parse_float(text).and_then(finite).map(numbers::truncate).transpose()?
                        }
                    },
                    Value::Float(value) if !value.is_nan() => Some(numbers::truncate(*value)?),
                    Value::Undefined => return fail!("'int' does not take undefined"),
                    value => value.as_int(),
                };
                Ok(match (parsed, default) {
                    (Some(value), _) => Value::Int(value),
                    (None, Value::Undefined) => Value::Int(0),
                    (None, default) => default,
                })
            }
            "float" => {
                let [default] = values.take(name, ["default"])?;
                let parsed = match value {
                    Value::Text(text) => numbers::parse_float(text),
                    Value::Undefined => return fail!("'float' does not take undefined"),
                    value => value.as_float(),
                };
                Ok(match (parsed, default) {
                    (Some(value), _) => Value::Float(value),
                    (None, Value::Undefined) => Value::Float(0.0),
                    (None, default) => default,
                })
            }
            _ => {
                let [precision, method] = values.take(name, ["precision", "method"])?;
                let Some(number) = value.as_float() else {
                    return fail!("'round' does not take {}", value.type_name());
                };
                let precision = precision.int_or(0)?;
                let scaled = |to_int: fn(f64) -> f64| {
                    let unit = 10f64.powi(precision.clamp(-400, 400) as i32);
                    let scaled = to_int(number * unit);
                    // As an integer between, which has no negative zero.
                    if scaled.is_finite() {
                        Ok(Value::Float((scaled + 0.0) / unit))
                    } else {
                        fail!("'round' does not take a number that is not finite")
                    }
                };
                match method.text_or("common")? {
                    "common" => Ok(match value.as_int() {
                        // Python leaves an integer one.
                        Some(int) if precision >= 0 => Value::Int(int),
                        Some(int) => {
                            Value::Int(numbers::round_int(int, precision.unsigned_abs().min(99) as u32)?)
                        }
                        None => Value::Float(numbers::round(number, precision)),
                    }),
                    "ceil" => scaled(f64::ceil),
                    "floor" => scaled(f64::floor),
                    _ => fail!("the method is common, ceil or floor"),
                }
            }
        }
    }

    fn text_filter(&mut self, name: &str, value: &Value<'a>, values: &Values<'a>) -> Result<Value<'a>> {
        let text = self.text_of(value)?;
        let result = self.filtered_text(name, value, &text, values)?;
        let keeps_mark = !matches!(name, "replace" | "title");
        self.keep_mark(keeps_mark && text.is_marked(), result)
    }

    fn filtered_text(
        &mut self,
        name: &str,
        value: &Value<'a>,
        text: &Text<'a>,
        values: &Values<'a>,
    ) -> Result<Value<'a>> {
        match name {
            "trim" => {
                let [characters] = values.take(name, ["chars"])?;
                self.strip(text, &characters, (true, true))
            }
            "replace" => {
                let [old, new, count] = values.take(name, ["old", "new", "count"])?;
                let (old, new) = (self.text_of(&old)?, self.text_of(&new)?);
                let count = count.given().map_or(Ok(-1), |count| count.int_or(-1))?;
                self.replace(text, &old, &new, count)
            }
            "indent" => match value {
                Value::Text(_) => self.indent(text, values),
                _ => fail!("'indent' does not take {}", value.type_name()),
            },
            "center" => {
                let [width] = values.take(name, ["width"])?;
                self.pad(text, width.count_or(80)?, &SPACE, Side::Both)
            }
            "format" => {
                if !values.named.is_empty() {
                    return fail!("'format' takes no arguments with names");
                }
                refuse_marked("format", text)?;
                self.printf(text, &values.positional, true)
            }
            "truncate" => self.truncate(text, values),
            _ => {
                let [] = values.take(name, [])?;
                match name {
                    "upper" => self.upper(text),
                    "lower" => self.lower(text),
                    "capitalize" => self.capitalize(text),
                    "title" => self.title_words(text),
                    "wordcount" => {
                        self.meter.read(text.len())?;
                        let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
                        Ok(Value::Int(words.filter(|word| !word.is_empty()).count() as i128))
                    }
                    "safe" => self.marked(text),
                    "escape" | "e" if text.is_marked() => Ok(Value::Text(text.clone())),
                    _ => self.escaped(text).map(Value::Text),
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
        // A line break at the end stays, as if a line followed that is empty. Jinja adds another first, which
        // makes one of both if the text ends with a carriage return.
        let ends = text.ends_with(|c| c != '\r' && strings::is_line_break(c));
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
            return fail!("the length is less than that of the end");
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
                _ => return fail!("'tojson' takes two separators"),
            },
            Some(_) => return fail!("'tojson' takes two separators"),
        };
        let style = JsonStyle { indent, item, key, ascii: ascii.is_true(), sorted: sorted.is_true() };
        let mut out = self.builder()?;
        write_json(&mut out, value, &style, 0)?;
        Ok(out.finish())
    }
}
