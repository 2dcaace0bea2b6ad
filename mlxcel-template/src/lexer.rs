//! The source of a template as tokens, by Jinja's rules of whitespace.
//!
//! Blocks are trimmed as transformers sets Jinja up: the line break after a block goes, and the spaces before
//! a block that begins its line (`trim_blocks`, `lstrip_blocks`).

use super::error::{Result, TemplateError, fail};

/// How many bytes a template may have; published ones have up to some 30,000.
pub(super) const MOST_SOURCE: usize = 1 << 20;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// Text that is written as it is.
    Data(String),
    /// `{%`
    BlockBegin,
    /// `%}`
    BlockEnd,
    /// `{{`
    OutputBegin,
    /// `}}`
    OutputEnd,
    Name(String),
    Text(String),
    Int(i128),
    Float(f64),
    /// An operator or a bracket.
    Sign(&'static str),
    End,
}

/// How many bytes a name may have: it is compared and hashed whenever it is looked up.
const LONGEST_NAME: usize = 256;

/// The longer ones first.
const SIGNS: [&str; 29] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "*", "/", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<",
    "=", ".", ":", "|", ",", ";", "!", "&", "^",
];

/// The tokens of `source`, each with its line; the last is [`Token::End`].
pub(super) fn tokens(source: &str) -> Result<Vec<(Token, u32)>> {
    if source.len() > MOST_SOURCE {
        return fail!("the template has {} bytes, more than {MOST_SOURCE}", source.len());
    }
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let source = source.strip_suffix('\n').unwrap_or(&source);
    let mut lexer = Lexer { rest: source, line: 1, line_start: true, tokens: Vec::new() };
    while !lexer.rest.is_empty() {
        lexer.data()?;
    }
    lexer.push(Token::End);
    Ok(lexer.tokens)
}

/// Whether Python takes a character for a space.
pub(super) fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\x1c'..='\x1f').contains(&character)
}

struct Lexer<'s> {
    rest: &'s str,
    line: u32,
    /// Whether what was read last ended with a line break.
    line_start: bool,
    tokens: Vec<(Token, u32)>,
}

impl<'s> Lexer<'s> {
    fn push(&mut self, token: Token) {
        self.tokens.push((token, self.line));
    }

    fn fault<T>(&self, message: &str) -> Result<T> {
        Err(TemplateError::at(self.line, message))
    }

    /// Continues by `length` bytes.
    fn skip(&mut self, length: usize) -> &'s str {
        let (before, after) = self.rest.split_at(length);
        self.line += before.matches('\n').count() as u32;
        if let Some(last) = before.chars().next_back() {
            self.line_start = last == '\n';
        }
        self.rest = after;
        before
    }

    /// Reads text up to the next tag, and the tag.
    fn data(&mut self) -> Result<()> {
        let begin = self.rest.match_indices('{').map(|(at, _)| at);
        let begin = { begin }.find(|at| matches!(self.rest.as_bytes().get(at + 1), Some(b'{' | b'%' | b'#')));
        let Some(begin) = begin else {
            let text = self.skip(self.rest.len());
            self.push(Token::Data(text.to_owned()));
            return Ok(());
        };
        let kind = self.rest.as_bytes()[begin + 1];
        let sign = self.rest.as_bytes().get(begin + 2).copied();
        self.text(begin, sign, kind != b'{');
        self.skip(2 + usize::from(matches!(sign, Some(b'-' | b'+'))));
        match kind {
            b'#' => self.comment(),
            b'%' if self.raw_begins() => self.raw(),
            b'%' => self.tag(Token::BlockBegin, "%}", Token::BlockEnd),
            _ => self.tag(Token::OutputBegin, "}}", Token::OutputEnd),
        }
    }

    /// Reads `length` bytes of text before a tag that begins with `sign`.
    fn text(&mut self, length: usize, sign: Option<u8>, is_block: bool) {
        let (line, line_start) = (self.line, self.line_start);
        let mut text = self.skip(length);
        if sign == Some(b'-') {
            text = text.trim_end_matches(is_space);
        } else if is_block && sign != Some(b'+') {
            let start = text.rfind('\n').map_or(0, |at| at + 1);
            if (start > 0 || line_start) && text[start..].chars().all(is_space) {
                text = &text[..start];
            }
        }
        if !text.is_empty() {
            self.tokens.push((Token::Data(text.to_owned()), line));
        }
    }

    /// Reads what follows the end of a tag: white space after `-`, else one line break after a block.
    fn after_tag(&mut self, sign: u8, trims: bool) {
        let length = match sign {
            b'-' => self.rest.len() - self.rest.trim_start_matches(is_space).len(),
            b'+' => 0,
            _ => usize::from(trims && self.rest.starts_with('\n')),
        };
        self.skip(length);
    }

    fn comment(&mut self) -> Result<()> {
        let Some(end) = self.rest.find("#}") else { return self.fault("a comment does not end") };
        let sign = end.checked_sub(1).map_or(0, |at| self.rest.as_bytes()[at]);
        self.skip(end + 2);
        self.after_tag(sign, true);
        Ok(())
    }

    fn raw_begins(&self) -> bool {
        let rest = self.rest.trim_start_matches(is_space).strip_prefix("raw");
        rest.map(|rest| rest.trim_start_matches(is_space))
            .is_some_and(|rest| rest.starts_with("%}") || rest.starts_with("-%}"))
    }

    fn raw(&mut self) -> Result<()> {
        let end = self.rest.find("%}").unwrap_or_default();
        let sign = self.rest.as_bytes().get(end.wrapping_sub(1)).copied().unwrap_or_default();
        self.skip(end + 2);
        self.after_tag(sign, false);
        for (begin, _) in self.rest.match_indices("{%") {
            let tag = &self.rest[begin + 2..];
            let sign = tag.bytes().next();
            let word = tag.trim_start_matches(['-', '+']).trim_start_matches(is_space);
            let Some(after) = word.strip_prefix("endraw") else { continue };
            let after = after.trim_start_matches(is_space);
            let end_sign = after.bytes().next().unwrap_or_default();
            let Some(after) = after.trim_start_matches(['-', '+']).strip_prefix("%}") else { continue };
            let whole = self.rest.len() - after.len();
            self.text(begin, sign, true);
            self.skip(whole - begin);
            self.after_tag(end_sign, true);
            return Ok(());
        }
        self.fault("a raw block does not end")
    }

    /// Reads the inside of a tag, up to and with `end`.
    fn tag(&mut self, begin: Token, end: &str, end_token: Token) -> Result<()> {
        let is_block = begin == Token::BlockBegin;
        self.push(begin);
        let mut open = Vec::new();
        loop {
            let spaces = self.rest.len() - self.rest.trim_start_matches(is_space).len();
            self.skip(spaces);
            let Some(first) = self.rest.chars().next() else { return self.fault("a tag does not end") };
            if open.is_empty() {
                let signed = first == '-' || (first == '+' && is_block);
                let at = usize::from(signed);
                if self.rest[at..].starts_with(end) {
                    self.push(end_token);
                    self.skip(at + end.len());
                    self.after_tag(if signed { first as u8 } else { 0 }, is_block);
                    return Ok(());
                }
            }
            match first {
                '\'' | '"' => self.string(first)?,
                '0'..='9' => self.number()?,
                _ if first == '_' || first.is_alphabetic() => {
                    let is_part = |c: char| c == '_' || c.is_alphanumeric();
                    let length = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
                    if length > LONGEST_NAME {
                        return self.fault("a name is too long");
                    }
                    let name = self.skip(length).to_owned();
                    self.push(Token::Name(name));
                }
                _ => {
                    let Some(sign) = SIGNS.into_iter().find(|&sign| self.rest.starts_with(sign)) else {
                        return self.fault(&format!("'{first}' is not expected here"));
                    };
                    match sign {
                        "(" | "[" | "{" => open.push(sign),
                        ")" | "]" | "}" => {
                            let pair = [("(", ")"), ("[", "]"), ("{", "}")];
                            if !open.pop().is_some_and(|open| pair.contains(&(open, sign))) {
                                return self.fault(&format!("'{sign}' closes nothing"));
                            }
                        }
                        _ => {}
                    }
                    self.push(Token::Sign(sign));
                    self.skip(sign.len());
                }
            }
        }
    }

    fn number(&mut self) -> Result<()> {
        let digits =
            |text: &str, radix| text.find(|c: char| c != '_' && !c.is_digit(radix)).unwrap_or(text.len());
        let radix = match self.rest.get(..2) {
            Some("0x" | "0X") => 16,
            Some("0o" | "0O") => 8,
            Some("0b" | "0B") => 2,
            _ => 10,
        };
        let prefix = if radix == 10 { 0 } else { 2 };
        let mut length = prefix + digits(&self.rest[prefix..], radix);
        let mut is_float = false;
        // `x.0.1` takes two items; `1.5` is a number.
        let after_dot = matches!(self.tokens.last(), Some((Token::Sign("."), _)));
        if radix == 10 && !after_dot {
            let after = &self.rest[length..];
            if after.starts_with('.') && after[1..].starts_with(|c: char| c.is_ascii_digit()) {
                length += 1 + digits(&after[1..], 10);
                is_float = true;
            }
            let after = &self.rest[length..];
            if after.starts_with(['e', 'E']) {
                let sign = usize::from(after[1..].starts_with(['+', '-']));
                if after[1 + sign..].starts_with(|c: char| c.is_ascii_digit()) {
                    length += 1 + sign + digits(&after[1 + sign..], 10);
                    is_float = true;
                }
            }
        }
        let text = self.rest[..length].replace('_', "");
        let token = if is_float {
            text.parse().ok().filter(|value: &f64| value.is_finite()).map(Token::Float)
        } else {
            i128::from_str_radix(&text[prefix..], radix).ok().map(Token::Int)
        };
        let Some(token) = token else { return self.fault("a number is too large") };
        self.push(token);
        self.skip(length);
        Ok(())
    }

    fn string(&mut self, quote: char) -> Result<()> {
        let mut text = String::new();
        let mut characters = self.rest[1..].char_indices();
        let end = loop {
            let Some((at, character)) = characters.next() else { return self.fault("a string does not end") };
            match character {
                '\\' => {
                    let Some((at, character)) = characters.next() else {
                        return self.fault("a string does not end");
                    };
                    let after = &self.rest[1 + at..];
                    for _ in 1..escape(after, character, &mut text) {
                        characters.next();
                    }
                }
                _ if character == quote => break at,
                _ => text.push(character),
            }
        };
        self.push(Token::Text(text));
        self.skip(end + 2);
        Ok(())
    }
}

/// Writes the character of the escape `after`, which begins with `character`; returns the escape's length.
fn escape(after: &str, character: char, text: &mut String) -> usize {
    let coded = |digits: usize, from: usize, radix: u32| {
        let code = after.get(from..from + digits).filter(|code| code.chars().all(|c| c.is_digit(radix)))?;
        char::from_u32(u32::from_str_radix(code, radix).ok()?)
    };
    let hexadecimal = match character {
        'x' => 2,
        'u' => 4,
        'U' => 8,
        _ => 0,
    };
    if hexadecimal > 0 {
        if let Some(coded) = coded(hexadecimal, 1, 16) {
            text.push(coded);
            return 1 + hexadecimal;
        }
        // Half of a pair: Python holds it, UTF-8 cannot.
        text.push(char::REPLACEMENT_CHARACTER);
        return 1;
    }
    if character.is_digit(8) {
        let digits = after.chars().take(3).take_while(|c| c.is_digit(8)).count();
        text.extend(coded(digits, 0, 8));
        return digits;
    }
    match character {
        'n' => text.push('\n'),
        't' => text.push('\t'),
        'r' => text.push('\r'),
        'a' => text.push('\x07'),
        'b' => text.push('\x08'),
        'f' => text.push('\x0c'),
        'v' => text.push('\x0b'),
        '\\' | '\'' | '"' => text.push(character),
        '\n' => {}
        _ => text.extend(['\\', character]),
    }
    1
}
