//! Arithmetic, as Python has it.

use super::ast::Binary;
use super::digits::in_ascii;
use super::error::{Result, TemplateError, fail};
use super::lexer::is_space;
use super::value::Value;

/// `left operator right` for numbers. Integers beyond 128 bits are refused.
pub(super) fn binary<'a>(operator: Binary, left: &Value<'_>, right: &Value<'_>) -> Result<Value<'a>> {
    if let (Some(a), Some(b)) = (left.as_int(), right.as_int()) {
        return of_ints(operator, a, b);
    }
    let (Some(a), Some(b)) = (left.as_float(), right.as_float()) else {
        let (left, right) = (left.type_name(), right.type_name());
        return fail!("'{}' does not take {left} and {right}", sign(operator));
    };
    let divides = matches!(operator, Binary::Divide | Binary::FloorDivide | Binary::Remainder);
    if divides && b == 0.0 {
        return fail!("division by zero");
    }
    Ok(Value::Float(match operator {
        Binary::Add => a + b,
        Binary::Subtract => a - b,
        Binary::Multiply => a * b,
        Binary::Divide => a / b,
        Binary::FloorDivide => floor_divide(a, b),
        Binary::Remainder => floor_remainder(a, b),
        Binary::Power => return power(a, b),
    }))
}

fn of_ints<'a>(operator: Binary, a: i128, b: i128) -> Result<Value<'a>> {
    let divides = matches!(operator, Binary::Divide | Binary::FloorDivide | Binary::Remainder);
    if divides && b == 0 {
        return fail!("division by zero");
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
        Binary::Power if b < 0 => return power(a as f64, b as f64),
        Binary::Power => match a {
            0 | 1 => Some(if b == 0 { 1 } else { a }),
            -1 => Some(if b % 2 == 0 { 1 } else { -1 }),
            _ => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
        },
    };
    value.map(Value::Int).ok_or_else(|| TemplateError::new("an integer is too large"))
}

fn power<'a>(a: f64, b: f64) -> Result<Value<'a>> {
    if a == 0.0 && b < 0.0 {
        return fail!("zero cannot be raised to a negative power");
    }
    let value = a.powf(b);
    match (a.is_finite() && b.is_finite(), value) {
        (true, value) if value.is_nan() => fail!("complex numbers are not supported"),
        (true, value) if value.is_infinite() => fail!("a float is too large"),
        _ => Ok(Value::Float(value)),
    }
}

/// The remainder with the sign of the divisor.
fn floor_remainder(a: f64, b: f64) -> f64 {
    let rest = a % b;
    if rest == 0.0 {
        return 0f64.copysign(b);
    }
    if (rest < 0.0) != (b < 0.0) { rest + b } else { rest }
}

/// The quotient that belongs to [`floor_remainder`], as Python computes it: the floor of `a / b` may be one too
/// many.
fn floor_divide(a: f64, b: f64) -> f64 {
    let rest = a % b;
    let mut quotient = (a - rest) / b;
    if rest != 0.0 && (rest < 0.0) != (b < 0.0) {
        quotient -= 1.0;
    }
    if quotient == 0.0 {
        return 0f64.copysign(a / b);
    }
    let floor = quotient.floor();
    if quotient - floor > 0.5 { floor + 1.0 } else { floor }
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
    let text = in_ascii(text.trim_matches(is_space));
    let digits = text.strip_prefix(['+', '-']).unwrap_or(&text);
    let prefixes = match radix {
        16 => ["0x", "0X"],
        8 => ["0o", "0O"],
        2 => ["0b", "0B"],
        _ => [""; 2],
    };
    let prefixed = prefixes.iter().find_map(|prefix| digits.strip_prefix(prefix)).unwrap_or(digits);
    if !(2..=36).contains(&radix) || prefixed.len() > 60 || prefixed.starts_with(['+', '-']) {
        return None;
    }
    // An underscore may follow a prefix.
    without_underscores(digits, |byte| byte.is_ascii_alphanumeric())?;
    let value = i128::from_str_radix(&prefixed.replace('_', ""), radix).ok()?;
    Some(if text.starts_with('-') { -value } else { value })
}

/// Python's `float(text)`.
pub(super) fn parse_float(text: &str) -> Option<f64> {
    let text = text.trim_matches(is_space);
    if text.len() > 400 {
        return None;
    }
    without_underscores(&in_ascii(text), |byte| byte.is_ascii_digit())?.parse().ok()
}

/// `text` without its underscores; none if one of them is not between two digits.
fn without_underscores(text: &str, is_digit: fn(&u8) -> bool) -> Option<String> {
    let bytes = text.as_bytes();
    let between = |at: usize| {
        let before = at.checked_sub(1).and_then(|before| bytes.get(before));
        before.is_some_and(is_digit) && bytes.get(at + 1).is_some_and(is_digit)
    };
    text.match_indices('_').all(|(at, _)| between(at)).then(|| text.replace('_', ""))
}

/// Python's `int(value)` of a finite float.
pub(super) fn truncate(value: f64) -> Result<i128> {
    // What lies within is exact in both.
    if value.abs() < 1e38 { Ok(value as i128) } else { fail!("an integer is too large") }
}

/// Python's `round(value, -digits)` of an integer: ties go to the even multiple.
pub(super) fn round_int(value: i128, digits: u32) -> Result<i128> {
    let Some(unit) = 10i128.checked_pow(digits) else { return Ok(0) };
    let (quotient, above) = (value.div_euclid(unit), value.rem_euclid(unit));
    let up = above > unit - above || (above == unit - above && quotient % 2 != 0);
    let rounded = (quotient + i128::from(up)).checked_mul(unit);
    rounded.ok_or_else(|| TemplateError::new("an integer is too large"))
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
    if unit.is_infinite() { 0f64.copysign(value) } else { (value / unit).round_ties_even() * unit }
}
