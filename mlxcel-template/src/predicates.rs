//! Tests: `value is name`.

use super::arguments::Values;
use super::ast::Comparison;
use super::error::{Result, TemplateError};
use super::evaluate::Evaluator;
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
        if matches!(name, "divisibleby" | "sameas") {
            let [other] = values.take(name, ["other"])?;
            return match (name, value.as_int(), other.as_int()) {
                ("sameas", ..) => Ok(std::mem::discriminant(value) == std::mem::discriminant(&other)
                    && value.equals(&other, &self.meter)?),
                (_, Some(value), Some(by)) if by != 0 => Ok(value.checked_rem(by).unwrap_or(0) == 0),
                _ => Err(TemplateError::new("'divisibleby' takes an int that is not zero")),
            };
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
            "callable" => matches!(value, Value::Macro(_) | Value::Function(_) | Value::Method),
            "even" | "odd" => {
                let value =
                    value.as_int().ok_or_else(|| TemplateError::new(format!("'{name}' takes an int")))?;
                (value % 2 == 0) == (name == "even")
            }
            "upper" | "lower" => {
                let text = self.text_of(value)?;
                self.meter.read(text.len())?;
                let wrong = |c: char| if name == "upper" { c.is_lowercase() } else { c.is_uppercase() };
                text.chars().any(char::is_alphabetic) && !text.chars().any(wrong)
            }
            "escaped" => false,
            _ => return Err(TemplateError::new(format!("there is no test '{name}'"))),
        })
    }
}

/// The comparison of a test.
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
