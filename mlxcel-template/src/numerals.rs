//! The digits of numbers, as Python's formats have them, without a sign.

use super::print::{exponential, float};

/// The digits of an integer of the kind `b`, `o`, `x`, `X`, or of any other one as a decimal number.
pub(super) fn int_text(kind: char, magnitude: u128) -> String {
    match kind {
        'b' => format!("{magnitude:b}"),
        'o' => format!("{magnitude:o}"),
        'x' => format!("{magnitude:x}"),
        'X' => format!("{magnitude:X}"),
        _ => format!("{magnitude}"),
    }
}

/// The digits of a float that is not negative, of the kind `e`, `f`, `g`, `%` or, with a capital, the same in
/// capitals. Without a kind, it is as `str` prints it, or as `g` with a digit behind the point.
pub(super) fn float_text(kind: Option<char>, magnitude: f64, precision: Option<usize>) -> String {
    let decimals = precision.unwrap_or(6);
    let text = match kind.map(|kind| kind.to_ascii_lowercase()) {
        _ if !magnitude.is_finite() => float(magnitude) + if kind == Some('%') { "%" } else { "" },
        Some('f') => format!("{magnitude:.decimals$}"),
        Some('%') => format!("{:.decimals$}%", magnitude * 100.0),
        Some('e') => with_exponent(magnitude, decimals, false),
        Some(_) => general(magnitude, decimals.max(1), false),
        None => precision.map_or_else(|| float(magnitude), |digits| general(magnitude, digits.max(1), true)),
    };
    if kind.is_some_and(|kind| kind.is_ascii_uppercase()) { text.to_uppercase() } else { text }
}

/// `digits` digits that count, with an exponent if it is large or small.
fn general(magnitude: f64, digits: usize, has_point: bool) -> String {
    let text = format!("{magnitude:.*e}", digits - 1);
    let exponent: i64 = text.split_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0);
    let most = digits as i64 - i64::from(has_point);
    if exponent < -4 || exponent >= most {
        return with_exponent(magnitude, digits - 1, true);
    }
    let decimals = usize::try_from(digits as i64 - 1 - exponent).unwrap_or(0);
    let text = without_zeros(&format!("{magnitude:.decimals$}")).to_owned();
    if has_point && !text.contains('.') { text + ".0" } else { text }
}

fn with_exponent(magnitude: f64, decimals: usize, is_short: bool) -> String {
    let text = format!("{magnitude:.decimals$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    exponential(if is_short { without_zeros(digits) } else { digits }, exponent)
}

fn without_zeros(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}
