//! The vocabulary of RWKV World, whose tokens are written as Python writes bytes.

use mlxcel_core::Result;

use super::super::metadata::Metadata;
use super::vocabulary::{TOKENS, TokenType, Vocabulary};
use super::{Kind, Pair};

/// What the original calls the token that begins and ends a text. Files have another name for it.
pub(super) const END_OF_TEXT: &str = "<|rwkv_tokenizer_end_of_text|>";

pub(super) fn kind() -> Kind {
    let defaults = |role: &str| (role == "eos").then_some(0);
    Kind { begins: false, ends: false, pair: Pair::None, defaults }
}

/// `rwkv_vocab_v20230424.txt`: in each line an id, the token as a literal of Python, and its length in bytes.
pub(super) fn vocabulary(metadata: Metadata<'_>, vocabulary: &Vocabulary<'_>) -> Result<String> {
    let mut lines = String::new();
    for token in vocabulary.tokens().filter(|token| token.ty == TokenType::Normal) {
        let bytes = bytes(token.text)
            .ok_or_else(|| metadata.wrong(TOKENS, "bytes as Python writes them in a literal"))?;
        lines.push_str(&format!("{} b'{}' {}\n", token.id, bytes.escape_ascii(), bytes.len()));
    }
    Ok(lines)
}

/// The bytes that a literal stands for.
fn bytes(literal: &str) -> Option<Vec<u8>> {
    let mut literal = literal.bytes();
    let mut bytes = Vec::new();
    while let Some(byte) = literal.next() {
        bytes.push(match byte {
            b'\\' => match literal.next()? {
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'x' => {
                    let mut digit = || char::from(literal.next()?).to_digit(16);
                    u8::try_from(16 * digit()? + digit()?).ok()?
                }
                quoted @ (b'\\' | b'\'' | b'"') => quoted,
                _ => return None,
            },
            byte => byte,
        });
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn literals_are_read_as_python_writes_them() {
        for (literal, token) in
            [("a'b", &b"a'b"[..]), (r"\x00\xfF\n\r\t", &[0, 0xff, 10, 13, 9]), (r#"\\x \' \""#, br#"\x ' ""#)]
        {
            assert_eq!(bytes(literal).as_deref(), Some(token), "{literal}");
        }
        for literal in ["\\", r"\x", r"\x4", r"\x+4", r"\q"] {
            assert_eq!(bytes(literal), None, "{literal}");
        }
    }
}
