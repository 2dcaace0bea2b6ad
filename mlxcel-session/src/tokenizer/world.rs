//! The tokenizer of RWKV World: a text is cut into the longest tokens that fit, byte by byte.
//!
//! Follows `rwkv_tokenizer.py` of ChatRWKV (BlinkDL), with which the models are trained. A token is spelled by
//! letters that stand for its bytes, as those of GPT-2 are, so that the steps around the model are the same.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::str::Chars;

use aho_corasick::{AhoCorasick, MatchKind};
use mlxcel_core::TokenId;
use tokenizers::Token;

use super::bytes::letters_of;

/// The token before a text, and at its end. The vocabulary does not list it.
pub(super) const END_OF_TEXT: &str = "<|rwkv_tokenizer_end_of_text|>";
/// Its id.
const END: TokenId = 0;

/// How long a token may be, in bytes: the time for a text grows with it. The longest published one has 128.
const LONGEST_TOKEN: usize = 256;
/// How long the file may be, in bytes, of which what finds tokens takes some fifty each; the published one has
/// 1.1 million.
const LONGEST_FILE: usize = 4 << 20;
/// The largest id that a token may have; published ones are below 2^16.
const LARGEST_ID: TokenId = 1 << 20;

/// The vocabulary, and what finds its tokens in a text.
pub(super) struct World {
    longest: AhoCorasick,
    /// The token of each pattern.
    found: Vec<TokenId>,
    ids: HashMap<String, TokenId>,
    spellings: HashMap<TokenId, String>,
    size: usize,
}

impl World {
    /// Reads `rwkv_vocab_v20230424.txt`: in each line an id, the token as a literal of Python, and its length
    /// in bytes.
    pub(super) fn read(file: &[u8]) -> Result<Self, String> {
        if file.len() > LONGEST_FILE {
            return Err(format!("it has {} bytes, more than {LONGEST_FILE}", file.len()));
        }
        let file = str::from_utf8(file).map_err(|_| "it is not UTF-8 text")?;
        let mut ids = HashMap::new();
        let mut spellings = HashMap::new();
        for (number, line) in file.lines().enumerate() {
            let wrong = |what: &str| format!("line {}: {what}", number + 1);
            let (id, token) = token(line).ok_or_else(|| wrong("not an id, a literal and its length"))?;
            if token.is_empty() || token.len() > LONGEST_TOKEN {
                return Err(wrong("an empty token, or one of more than 256 bytes"));
            }
            if id == END || id > LARGEST_ID {
                return Err(wrong("an id that no token can have"));
            }
            let spelling = letters_of(&token);
            if ids.insert(spelling.clone(), id).is_some() || spellings.insert(id, spelling).is_some() {
                return Err(wrong("a token or an id that another line has"));
            }
        }
        if let Some(byte) = (0..=u8::MAX).find(|&byte| !ids.contains_key(&letters_of(&[byte]))) {
            return Err(format!("the byte {byte:#04x} has no token"));
        }
        let (patterns, found): (Vec<_>, Vec<_>) = ids.iter().map(|(token, &id)| (token, id)).unzip();
        let longest = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(patterns)
            .map_err(|_| "the vocabulary is too large")?;
        let size = spellings.keys().max().map_or(0, |&id| id as usize + 1);
        ids.insert(END_OF_TEXT.to_owned(), END);
        spellings.insert(END, END_OF_TEXT.to_owned());
        Ok(Self { longest, found, ids, spellings, size })
    }

    /// The most bytes that a token covers: those of its letters, of which a byte has one.
    pub(super) fn longest(&self) -> usize {
        self.longest.max_pattern_len()
    }
}

impl tokenizers::Model for World {
    type Trainer = tokenizers::models::TrainerWrapper;

    fn tokenize(&self, letters: &str) -> tokenizers::Result<Vec<Token>> {
        let mut end = 0;
        let tokens = self.longest.find_iter(letters).filter_map(|found| {
            let is_next = found.start() == end;
            end = found.end();
            let id = *self.found.get(found.pattern().as_usize())?;
            is_next.then(|| Token::new(id, String::new(), (found.start(), found.end())))
        });
        let tokens: Vec<Token> = tokens.collect();
        let covered: usize = tokens.iter().map(|token| token.offsets.1 - token.offsets.0).sum();
        if covered < letters.len() {
            return Err("a letter stands for no byte".into());
        }
        Ok(tokens)
    }

    /// The token with this spelling, or with this text.
    fn token_to_id(&self, token: &str) -> Option<TokenId> {
        self.ids.get(token).or_else(|| self.ids.get(&letters_of(token.as_bytes()))).copied()
    }

    fn id_to_token(&self, id: TokenId) -> Option<String> {
        self.spellings.get(&id).cloned()
    }

    fn get_vocab(&self) -> HashMap<String, TokenId> {
        self.ids.clone()
    }

    fn get_vocab_size(&self) -> usize {
        self.size
    }

    fn save(&self, _: &Path, _: Option<&str>) -> tokenizers::Result<Vec<PathBuf>> {
        Err("tokenizers are not written".into())
    }

    fn get_trainer(&self) -> Self::Trainer {
        tokenizers::models::wordlevel::WordLevelTrainer::default().into()
    }
}

/// The id and the bytes of a line.
fn token(line: &str) -> Option<(TokenId, Vec<u8>)> {
    let (id, rest) = line.split_once(' ')?;
    let (literal, length) = rest.trim_end().rsplit_once(' ')?;
    let token = unquoted(literal)?;
    (token.len() == length.parse::<usize>().ok()?).then_some((id.parse().ok()?, token))
}

/// The bytes of a literal of Python, as `repr` writes it: of a text, in UTF-8, or of bytes.
fn unquoted(literal: &str) -> Option<Vec<u8>> {
    let (is_bytes, quoted) = match literal.strip_prefix('b') {
        Some(rest) => (true, rest),
        None => (false, literal),
    };
    let quote = quoted.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
    let inside = quoted.strip_prefix(quote)?.strip_suffix(quote)?;
    let mut token = Vec::new();
    let mut chars = inside.chars();
    while let Some(next) = chars.next() {
        let code = match next {
            '\\' => escaped(&mut chars, is_bytes)?,
            _ if next == quote || is_bytes && !next.is_ascii() => return None,
            _ => u32::from(next),
        };
        if is_bytes {
            token.push(u8::try_from(code).ok()?);
        } else {
            token.extend_from_slice(char::from_u32(code)?.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
    Some(token)
}

/// The code of a character behind a backslash.
fn escaped(chars: &mut Chars<'_>, is_bytes: bool) -> Option<u32> {
    let digits = match chars.next()? {
        'n' => return Some(0x0a),
        'r' => return Some(0x0d),
        't' => return Some(0x09),
        quoted @ ('\\' | '\'' | '"') => return Some(u32::from(quoted)),
        'x' => 2,
        'u' if !is_bytes => 4,
        'U' if !is_bytes => 8,
        _ => return None,
    };
    (0..digits).try_fold(0, |code: u32, _| code.checked_mul(16)?.checked_add(chars.next()?.to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_literals_of_python() {
        for (line, id, bytes) in [
            (r"1 '\x00' 1", 1, &[0][..]),
            (r"255 b'\xfe' 1", 255, &[0xfe]),
            (r"300 '\xe9' 2", 300, &[0xc3, 0xa9]),
            (r"301 '\u2028' 3", 301, "\u{2028}".as_bytes()),
            (r"302 '\U000e0100' 4", 302, "\u{e0100}".as_bytes()),
            (r#"303 "it's" 4"#, 303, b"it's"),
            (r#"304 'say "\'' 6"#, 304, b"say \"'"),
            (r"305 ' \\ \n\r\t' 6", 305, b" \\ \n\r\t"),
            ("306 '世界' 6", 306, "世界".as_bytes()),
            (r"307 b'\xe4\xb8' 2", 307, &[0xe4, 0xb8]),
        ] {
            assert_eq!(token(line), Some((id, bytes.to_vec())), "{line}");
        }
        let too_long = ["1 'a' 18446744073709551616"];
        let wrong = [
            "", "1", "1 'a'", "1 'a' 2", "-1 'a' 1", "x 'a' 1", "1 a 1", "1 'a 1", "1 'a\" 1", "1 'a'' 2",
            r"1 '\q' 1", r"1 '\x4' 1", r"1 '\ud800' 3", r"1 b'\u0041' 1", "1 b'é' 2", "1 ' 1", "1  1",
            r"1 '\' 1", "99999999999 'a' 1",
        ];
        for line in wrong.into_iter().chain(too_long) {
            assert_eq!(token(line), None, "{line}");
        }
    }
}
