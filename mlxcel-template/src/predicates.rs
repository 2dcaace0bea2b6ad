//! Tests: `value is name`.

use super::arguments::Values;
use super::ast::{Binary, Comparison};
use super::error::{Result, fail};
use super::evaluate::Evaluator;
use super::strings;
use super::value::Value;

impl<'a> Evaluator<'a> {
    /// Whether `value is name(values)`.
    pub(super) fn test(&mut self, name: &str, value: &Value<'a>, values: &Values<'a>) -> Result<bool> {
        self.meter.work(1)?;
        values.read(&self.meter)?;
        if let Some(comparison) = comparison(name) {
            let [other] = values.take(name, ["other"])?;
            return self.compare(comparison, value, &other);
        }
        if name == "sameas" {
            let [other] = values.take(name, ["other"])?;
            return Ok(std::mem::discriminant(value) == std::mem::discriminant(&other)
                && value.equals(&other, &self.meter)?);
        }
        if name == "divisibleby" {
            let [by] = values.take(name, ["num"])?;
            return self.leaves(value, &by, 0);
        }
        let [] = values.take(name, [])?;
        Ok(match name {
            "defined" => !value.is_undefined(),
            "undefined" => value.is_undefined(),
            "none" => matches!(value, Value::None),
            "string" => matches!(value, Value::Text(_)),
            "mapping" => matches!(value, Value::Dict(_)),
            "sequence" | "iterable" => {
                matches!(value, Value::Text(_) | Value::Seq(_) | Value::Dict(_) | Value::Undefined)
            }
            "number" => matches!(value, Value::Bool(_) | Value::Int(_) | Value::Float(_)),
            "integer" => matches!(value, Value::Int(_)),
            "float" => matches!(value, Value::Float(_)),
            "boolean" => matches!(value, Value::Bool(_)),
            "true" => matches!(value, Value::Bool(true)),
            "false" => matches!(value, Value::Bool(false)),
            // What is undefined has a method to be called, which raises the error.
            "callable" => {
                matches!(value, Value::Macro(_) | Value::Function(_) | Value::Method | Value::Undefined)
            }
            "even" => self.leaves(value, &Value::Int(2), 0)?,
            "odd" => self.leaves(value, &Value::Int(2), 1)?,
            "upper" | "lower" => {
                let text = self.text_of(value)?;
                self.meter.read(text.len())?;
                if name == "upper" { strings::is_upper(&text) } else { strings::is_lower(&text) }
            }
            "escaped" => matches!(value, Value::Text(text) if text.is_marked()),
            _ => return fail!("there is no test '{name}'"),
        })
    }

    /// Whether `value % by == rest`.
    fn leaves(&mut self, value: &Value<'a>, by: &Value<'a>, rest: i128) -> Result<bool> {
        self.binary(Binary::Remainder, value, by)?.equals(&Value::Int(rest), &self.meter)
    }
}

fn comparison(name: &str) -> Option<Comparison> {
    Some(match name {
        "eq" | "equalto" | "==" => Comparison::Equal,
        "ne" | "!=" => Comparison::Unequal,
        "lt" | "lessthan" | "<" => Comparison::Less,
        "le" | "<=" => Comparison::LessOrEqual,
        "gt" | "greaterthan" | ">" => Comparison::Greater,
        "ge" | ">=" => Comparison::GreaterOrEqual,
        "in" => Comparison::In,
        _ => return None,
    })
}
