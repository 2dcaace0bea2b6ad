//! Parsing of sizes.

use mlxcel_core::{Error, ErrorKind, Result};

/// Parses a number of bytes: `1073741824`, `500M`, `8GiB`, `1.5 GB`. All units are powers of 1,024.
///
/// ```
/// assert_eq!(mlxcel_iree_compile::cache::parse_size("1.5GiB").ok(), Some(3 << 29));
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for anything else.
pub fn parse_size(text: &str) -> Result<u64> {
    parse(text).ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidInput,
            "read a size",
            "a size is a number of bytes, K, M, G or T, such as 500M",
        )
        .with_context("size", text)
    })
}

fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let unit = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return None,
    };
    if !number.contains('.') {
        return number.parse::<u64>().ok()?.checked_mul(1 << shift);
    }
    let bytes = number.parse::<f64>().ok()? * f64::from(2u32).powi(shift);
    (bytes < u64::MAX as f64).then_some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_and_without_units() {
        for (text, bytes) in [
            ("0", 0),
            ("1024", 1024),
            (" 500M ", 500 << 20),
            ("8GiB", 8 << 30),
            ("8 gb", 8 << 30),
            ("1.5k", 1536),
            ("2T", 2 << 40),
            ("7b", 7),
        ] {
            assert_eq!(parse_size(text).unwrap(), bytes, "{text}");
        }
        for text in ["", "G", "-1", "1e9", "8 apples", "1.2.3", "99999999999T", "99999999999999999999.0"] {
            assert_eq!(parse_size(text).unwrap_err().context("size"), Some(text));
        }
    }
}
