//! The bytes of a token, by the steps of the tokenizer's decoder.

use serde_json::Value;

use super::steps::text;

/// What a decoder's step does to one token in the middle of a text.
pub(super) enum Step {
    /// Letters represent bytes, as in GPT-2.
    ByteLevel,
    /// `<0x0A>` is a byte.
    ByteFallback,
    /// Replaces a text within the token.
    Replace(String, String),
    /// A token with this prefix continues a word; another one begins a word.
    WordPiece(String),
}

/// Reads a step of a decoder; none for one that leaves a token in the middle of a text as it is.
pub(super) fn step(kind: &str, value: &Value) -> Option<Step> {
    let field = |name, default: &str| text(value, name).unwrap_or(default).to_owned();
    match kind {
        "ByteLevel" => Some(Step::ByteLevel),
        "ByteFallback" => Some(Step::ByteFallback),
        "Metaspace" => Some(Step::Replace(field("replacement", "▁"), " ".to_owned())),
        "Replace" => {
            // An expression is not looked for in a single token.
            let pattern = value.get("pattern")?.get("String")?.as_str()?.to_owned();
            Some(Step::Replace(pattern, field("content", "")))
        }
        "BPEDecoder" | "BPE" => Some(Step::Replace(field("suffix", "</w>"), " ".to_owned())),
        "WordPiece" => Some(Step::WordPiece(field("prefix", "##"))),
        _ => None,
    }
}

/// The bytes that `token` adds to a text, in which it is not the first.
pub(super) fn of_token(steps: &[Step], mut token: String) -> Vec<u8> {
    for step in steps {
        match step {
            // A letter that represents no byte is not of a byte-level token.
            Step::ByteLevel => {
                let bytes: Option<Vec<u8>> = token.chars().map(byte_of_letter).collect();
                return bytes.unwrap_or(token.into_bytes());
            }
            Step::ByteFallback => {
                if let Some(byte) = fallback_byte(&token) {
                    return vec![byte];
                }
            }
            Step::Replace(pattern, content) if !pattern.is_empty() => token = token.replace(pattern, content),
            Step::Replace(..) => {}
            Step::WordPiece(prefix) => {
                token = match token.strip_prefix(prefix.as_str()) {
                    Some(rest) => rest.to_owned(),
                    None => format!(" {token}"),
                };
            }
        }
    }
    token.into_bytes()
}

/// The byte of a token such as `<0x0A>`.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// The byte of a letter: printable ones of Latin-1 are themselves, and the others, in their order, are the
/// letters from U+0100 on (`bytes_to_unicode` of GPT-2).
fn byte_of_letter(letter: char) -> Option<u8> {
    match u32::from(letter) {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => u8::try_from(code).ok(),
        code @ 0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        code @ 0x121..=0x142 => u8::try_from(code - 0x121 + 0x7f).ok(),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// The letters that represent `bytes`.
pub(super) fn letters_of(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| letter_of_byte(byte)).collect()
}

/// The letter of a byte.
fn letter_of_byte(byte: u8) -> char {
    let code = match byte {
        0x00..=0x20 => u32::from(byte) + 0x100,
        0x7f..=0xa0 => u32::from(byte) - 0x7f + 0x121,
        0xad => 0x143,
        _ => u32::from(byte),
    };
    char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_one_byte_level_letter() {
        let mut bytes: Vec<u8> = ('\0'..='\u{200}').filter_map(byte_of_letter).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<_>>());
        assert!((0..=255).all(|byte| byte_of_letter(letter_of_byte(byte)) == Some(byte)));
        assert_eq!(of_token(&[Step::ByteLevel], "ĠtheĊ".to_owned()), b" the\n");
        assert_eq!(of_token(&[Step::ByteLevel], "a b ｜".to_owned()), "a b ｜".as_bytes());
    }

    #[test]
    fn token_bytes_are_those_in_the_middle_of_a_text() {
        let sentencepiece = [Step::Replace("▁".to_owned(), " ".to_owned()), Step::ByteFallback];
        assert_eq!(of_token(&sentencepiece, "▁was".to_owned()), b" was");
        assert_eq!(of_token(&sentencepiece, "<0xF0>".to_owned()), [0xf0]);
        let pieces = [Step::WordPiece("##".to_owned())];
        assert_eq!(of_token(&pieces, "##ing".to_owned()), b"ing");
        assert_eq!(of_token(&pieces, "go".to_owned()), b" go");
        let bpe = step("BPEDecoder", &Value::Null).unwrap();
        assert_eq!(of_token(&[bpe], "go</w>".to_owned()), b"go ");
    }
}
