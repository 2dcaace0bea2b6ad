//! JSON parsing with memory proportional to its text.

use mlxcel_core::{Error, ErrorKind, Printable, Result};
use serde::de::{DeserializeOwned, Error as _};

/// How many bytes of memory a byte of text may take once it is parsed.
const FACTOR: usize = 64;

/// What any text may take beyond that.
const ALLOWANCE: usize = 1 << 20;

/// The most that a value takes as an element of a list or a field of an object, while these grow.
const VALUE: usize = 384;

/// The most that an object takes by itself.
const OBJECT: usize = 640;

/// Parses `content`. Errors contain `message` and `location`.
///
/// As a tree of values, text such as `[{},{},…` takes a hundred times its size. Text that would take more
/// than 64 times its size plus 1 MiB is rejected before parsing; typical config files take about 20 times
/// theirs.
///
/// # Errors
///
/// [`Corrupt`](ErrorKind::Corrupt).
pub fn parse_json<T: DeserializeOwned>(location: &str, content: &[u8], message: &'static str) -> Result<T> {
    let corrupt =
        |message| Error::new(ErrorKind::Corrupt, "parse JSON", message).with_context("path", location);
    if estimate(content) > content.len().saturating_mul(FACTOR).saturating_add(ALLOWANCE) {
        return Err(corrupt("the file has more JSON values than a plausible file of its size"));
    }
    // The parser repeats names of the file, which may hold anything.
    serde_json::from_slice(content).map_err(|error| {
        corrupt(message).with_source(serde_json::Error::custom(Printable(&error.to_string())))
    })
}

/// The most memory that the values in `text` take.
fn estimate(text: &[u8]) -> usize {
    let (mut values, mut objects) = (1usize, 0usize);
    let mut quoted = false;
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => quoted = !quoted,
            // Whatever is escaped ends no text.
            b'\\' if quoted => drop(bytes.next()),
            b',' | b'[' if !quoted => values += 1,
            b'{' if !quoted => {
                values += 1;
                objects += 1;
            }
            _ => {}
        }
    }
    text.len() + values.saturating_mul(VALUE) + objects.saturating_mul(OBJECT)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn parse(text: &str) -> Result<Value> {
        parse_json("config.json", text.as_bytes(), "no JSON")
    }

    #[test]
    fn json_with_excessive_structure_is_rejected() {
        for part in ["0,", "{\"\":0},", "[],", "{},", "[[]],"] {
            let text = format!("[{}0]", part.repeat(400_000 / part.len()));
            let error = parse(&text).unwrap_err();
            assert_eq!((error.kind(), error.context("path")), (ErrorKind::Corrupt, Some("config.json")));
            assert!(error.message().contains("more JSON values"), "{error}");
        }
    }

    #[test]
    fn names_in_errors_are_printed_safely() {
        #[derive(Debug, serde::Deserialize)]
        enum Known {}
        let error = parse_json::<Known>("a", b"\"\\u001b[31m\"", "no JSON").unwrap_err();
        let said = mlxcel_core::one_line(&error);
        assert!(said.contains("\\u{1b}[31m") && !said.contains('\u{1b}'), "{said}");
    }

    #[test]
    fn ordinary_settings_are_accepted() {
        // One module of a quantized checkpoint with settings of its own, without a space: the densest that is
        // published.
        let module = "\"model.layers.11.mlp.down_proj\":{\"group_size\":64,\"bits\":8}";
        parse(&format!("{{\"quantization\":{{{}}}}}", [module].repeat(10_000).join(","))).unwrap();
        let token = "{\"content\":\"<|reserved_special_token_11|>\",\"lstrip\":false,\"special\":true}";
        parse(&format!("[{}]", [token].repeat(10_000).join(","))).unwrap();
        // Structure in texts is none, nor is a quote that is escaped.
        parse(&format!("[\"{}\"]", "[{,\\\"".repeat(100_000))).unwrap();
        // A small file may hold what it likes.
        parse(&format!("[{}0]", "{},".repeat(500))).unwrap();
    }
}
