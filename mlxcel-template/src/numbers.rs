//! Arithmetic, as Python has it.

use super::ast::Binary;
use super::error::{Result, TemplateError};
use super::value::Value;

/// `left operator right` for numbers. Integers beyond 128 bits are refused.
pub(super) fn binary<'a>(operator: Binary, left: &Value<'_>, right: &Value<'_>) -> Result<Value<'a>> {
    if let (Some(a), Some(b)) = (left.as_int(), right.as_int()) {
        return of_ints(operator, a, b);
    }
    let (Some(a), Some(b)) = (left.as_float(), right.as_float()) else {
        let (left, right) = (left.type_name(), right.type_name());
        return Err(TemplateError::new(format!("'{}' does not take {left} and {right}", sign(operator))));
    };
    let divides = matches!(operator, Binary::Divide | Binary::FloorDivide | Binary::Remainder);
    if divides && b == 0.0 {
        return Err(TemplateError::new("division by zero"));
    }
    Ok(Value::Float(match operator {
        Binary::Add => a + b,
        Binary::Subtract => a - b,
        Binary::Multiply => a * b,
        Binary::Divide => a / b,
        Binary::FloorDivide => (a / b).floor(),
        Binary::Remainder => floor_remainder(a, b),
        Binary::Power => a.powf(b),
    }))
}

fn of_ints<'a>(operator: Binary, a: i128, b: i128) -> Result<Value<'a>> {
    let divides = matches!(operator, Binary::Divide | Binary::FloorDivide | Binary::Remainder);
    if divides && b == 0 {
        return Err(TemplateError::new("division by zero"));
    }
    let value = match operator {
        Binary::Add => a.checked_add(b),
        Binary::Subtract => a.checked_sub(b),
        Binary::Multiply => a.checked_mul(b),
        Binary::Divide => return Ok(Value::Float(a as f64 / b as f64)),
        Binary::FloorDivide => a.checked_div_euclid(b).map(|quotient| {
            // Euclid's remainder is never negative, Python's has the sign of the divisor.
            if b < 0 && a.wrapping_rem_euclid(b) != 0 { quotient - 1 } else { quotient }
        }),
        Binary::Remainder => {
            a.checked_rem_euclid(b).map(|rest| if b < 0 && rest != 0 { rest + b } else { rest })
        }
        Binary::Power if b < 0 => return Ok(Value::Float((a as f64).powf(b as f64))),
        Binary::Power => match a {
            0 | 1 => Some(if b == 0 { 1 } else { a }),
            -1 => Some(if b % 2 == 0 { 1 } else { -1 }),
            _ => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
        },
    };
    value.map(Value::Int).ok_or_else(|| TemplateError::new("an integer is too large"))
}

/// The remainder with the sign of the divisor.
fn floor_remainder(a: f64, b: f64) -> f64 {
    let rest = a % b;
    if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest }
}

fn sign(operator: Binary) -> &'static str {
    match operator {
        Binary::Add => "+",
        Binary::Subtract => "-",
        Binary::Multiply => "*",
        Binary::Divide => "/",
        Binary::FloorDivide => "//",
        Binary::Remainder => "%",
        Binary::Power => "**",
    }
}

/// Python's `int(text, base)`.
pub(super) fn parse_int(text: &str, radix: u32) -> Option<i128> {
    let text = text.trim_matches(super::lexer::is_space);
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let digits = match radix {
        16 => digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")).unwrap_or(digits),
        8 => digits.strip_prefix("0o").unwrap_or(digits),
        2 => digits.strip_prefix("0b").unwrap_or(digits),
        _ => digits,
    };
    if !(2..=36).contains(&radix) || digits.len() > 60 || digits.starts_with(['+', '-', '_']) {
        return None;
    }
    let value = i128::from_str_radix(&digits.replace('_', ""), radix).ok()?;
    Some(if text.starts_with('-') { -value } else { value })
}

/// Python's `float(text)`.
pub(super) fn parse_float(text: &str) -> Option<f64> {
    let text = text.trim_matches(super::lexer::is_space);
    if text.len() > 400 { None } else { text.parse().ok() }
}

/// Python's `int(value)` of a float.
pub(super) fn truncate(value: f64) -> Option<i128> {
    // What lies within is exact in both.
    (value.abs() < 1e38).then_some(value as i128)
}

/// Python's `round(value, digits)`.
pub(super) fn round(value: f64, digits: i128) -> f64 {
    // A float has up to some 300 digits before the point, and no more than 17 that count.
    let digits = digits.clamp(-320, 320) as i32;
    if !value.is_finite() {
        return value;
    }
    if digits >= 0 {
        // Printing rounds the exact value, ties to even.
        return format!("{value:.*}", digits as usize).parse().unwrap_or(value);
    }
    let unit = 10f64.powi(-digits);
    if unit.is_infinite() { 0.0 } else { (value / unit).round_ties_even() * unit }
}
