//! Python's operations on texts, that methods and filters share.

use super::error::{Result, fail};
use super::evaluate::Evaluator;
use super::lexer::is_space;
use super::meter::Charge;
use super::origin::Origin;
use super::value::{Text, Value};

impl<'a> Evaluator<'a> {
    /// A text that `write` writes from each character of `text`.
    pub(super) fn map_text(
        &self,
        text: &Text<'a>,
        mut write: impl FnMut(char, &mut String),
    ) -> Result<Value<'a>> {
        let mut out = self.builder()?;
        let mut piece = String::new();
        for (character, origin) in text.characters() {
            piece.clear();
            write(character, &mut piece);
            out.push_as(&piece, origin)?;
        }
        Ok(out.finish())
    }

    pub(super) fn upper(&self, text: &Text<'a>) -> Result<Value<'a>> {
        self.map_text(text, |character, out| out.extend(character.to_uppercase()))
    }

    pub(super) fn lower(&self, text: &Text<'a>) -> Result<Value<'a>> {
        let mut lower = self.lowercase(text)?;
        self.map_text(text, |character, out| lower.push(character, out))
    }

    /// `text.casefold()`, but for Cherokee, which Python folds to capitals.
    pub(super) fn casefold(&self, text: &Text<'a>) -> Result<Value<'a>> {
        self.map_text(text, |character, out| match character {
            'ı' => out.push(character),
            _ => {
                let upper = character.to_lowercase().flat_map(char::to_uppercase);
                out.extend(upper.flat_map(char::to_lowercase));
            }
        })
    }

    pub(super) fn swapcase(&self, text: &Text<'a>) -> Result<Value<'a>> {
        let mut lower = self.lowercase(text)?;
        self.map_text(text, |character, out| {
            if character.is_uppercase() {
                lower.push(character, out);
            } else if character.is_lowercase() {
                out.extend(character.to_uppercase());
            } else {
                out.push(character);
            }
        })
    }

    pub(super) fn capitalize(&self, text: &Text<'a>) -> Result<Value<'a>> {
        let mut first = true;
        let mut lower = self.lowercase(text)?;
        self.map_text(text, |character, out| {
            if std::mem::take(&mut first) {
                lower.skip(character);
                push_title(character, out);
            } else {
                lower.push(character, out);
            }
        })
    }

    /// The method `title`: capitals at the beginning of words, which are runs of characters with case.
    pub(super) fn title(&self, text: &Text<'a>) -> Result<Value<'a>> {
        let mut in_word = false;
        let mut lower = self.lowercase(text)?;
        self.map_text(text, |character, out| {
            if in_word {
                lower.push(character, out);
            } else {
                lower.skip(character);
                push_title(character, out);
            }
            in_word = is_cased(character);
        })
    }

    /// The filter `title`, whose words begin after spaces, hyphens and opening brackets.
    pub(super) fn title_words(&self, text: &Text<'a>) -> Result<Value<'a>> {
        let begins_word = |before: char| is_space(before) || matches!(before, '-' | '(' | '{' | '[' | '<');
        // Case is that of a word without its first character.
        let mut sigmas = Vec::new();
        for word in text.split(begins_word) {
            let mut behind = word.chars();
            behind.next();
            sigmas.extend(self.lowercase(behind.as_str())?.sigmas);
        }
        let mut lower = Lowercase { sigmas: sigmas.into_iter() };
        let mut at_start = true;
        self.map_text(text, |character, out| {
            if at_start {
                out.extend(character.to_uppercase());
            } else {
                lower.push(character, out);
            }
            at_start = begins_word(character);
        })
    }

    fn lowercase(&self, text: &str) -> Result<Lowercase> {
        const SIGMA: char = 'Σ';
        if !text.contains(SIGMA) {
            return Ok(Lowercase { sigmas: Vec::new().into_iter() });
        }
        self.meter.read(4 * text.len())?;
        let _held = Charge::new(&self.meter, 4 * text.len())?;
        let lower = text.to_lowercase();
        let mut lower = lower.chars();
        let mut sigmas = Vec::new();
        for character in text.chars() {
            let written = lower.nth(character.to_lowercase().count() - 1);
            if character == SIGMA {
                sigmas.push(written.unwrap_or('σ'));
            }
        }
        Ok(Lowercase { sigmas: sigmas.into_iter() })
    }

    /// `text.strip(characters)`, on the selected sides; whitespace by default.
    pub(super) fn strip(
        &self,
        text: &Text<'a>,
        characters: &Value<'a>,
        sides: (bool, bool),
    ) -> Result<Value<'a>> {
        let set = match characters.given() {
            None => None,
            Some(characters) => Some(characters.text_or("")?),
        };
        let work = set.map_or(1, |set| 1 + set.len() / 8);
        self.meter.read(text.len().saturating_mul(work))?;
        let strips = |c: char| set.map_or(is_space(c), |set| set.contains(c));
        let start = if sides.0 { text.len() - text.trim_start_matches(strips).len() } else { 0 };
        let end = if sides.1 { text.trim_end_matches(strips).len() } else { text.len() };
        self.part(text, start..end.max(start))
    }

    /// `text.replace(old, new, count)`; all of them where the count is negative.
    pub(super) fn replace(
        &self,
        text: &Text<'a>,
        old: &str,
        new: &Text<'a>,
        count: i128,
    ) -> Result<Value<'a>> {
        self.meter.read(text.len())?;
        let mut out = self.builder()?;
        let mut left = if count < 0 { usize::MAX } else { usize::try_from(count).unwrap_or(usize::MAX) };
        if old.is_empty() {
            // Python finds nothing before each character and at the end.
            for (index, character) in text.characters().map(Some).chain([None]).enumerate() {
                if index < left {
                    out.push_text(new)?;
                }
                if let Some((character, origin)) = character {
                    out.push_char(character, origin)?;
                }
            }
            return Ok(out.finish());
        }
        let mut start = 0;
        while left > 0 {
            let Some(at) = text[start..].find(old).map(|at| start + at) else { break };
            out.push_part(text, start..at)?;
            out.push_text(new)?;
            start = at + old.len();
            left -= 1;
        }
        out.push_part(text, start..text.len())?;
        Ok(out.finish())
    }

    /// `text.split(separator, count)`, from either end; at whitespace by default.
    pub(super) fn split(
        &self,
        text: &Text<'a>,
        separator: &Value<'a>,
        count: i128,
        from_end: bool,
    ) -> Result<Value<'a>> {
        self.meter.read(text.len())?;
        let most = if count < 0 { usize::MAX } else { usize::try_from(count).unwrap_or(usize::MAX) };
        let ranges = match separator.given() {
            Some(separator) => {
                let separator = separator.text_or("")?;
                if separator.is_empty() {
                    return fail!("the separator is empty");
                }
                self.split_at(text, separator, most, from_end)?
            }
            None => self.split_at_spaces(text, most, from_end)?,
        };
        let mut list = self.list()?;
        for range in ranges {
            list.push(self.part(text, range)?)?;
        }
        Ok(list.finish())
    }

    fn split_at(
        &self,
        text: &str,
        separator: &str,
        most: usize,
        from_end: bool,
    ) -> Result<Vec<std::ops::Range<usize>>> {
        let mut ranges = Vec::new();
        let mut rest = 0..text.len();
        while ranges.len() < most {
            let inside = &text[rest.clone()];
            let found = if from_end { inside.rfind(separator) } else { inside.find(separator) };
            let Some(at) = found.map(|at| rest.start + at) else { break };
            self.meter.work(4)?;
            if from_end {
                ranges.push(at + separator.len()..rest.end);
                rest.end = at;
            } else {
                ranges.push(rest.start..at);
                rest.start = at + separator.len();
            }
        }
        ranges.push(rest);
        if from_end {
            ranges.reverse();
        }
        Ok(ranges)
    }

    fn split_at_spaces(
        &self,
        text: &str,
        most: usize,
        from_end: bool,
    ) -> Result<Vec<std::ops::Range<usize>>> {
        let mut ranges = Vec::new();
        let (mut start, mut end) = (0, text.len());
        loop {
            self.meter.work(4)?;
            let inside = &text[start..end];
            if from_end {
                end = start + inside.trim_end_matches(is_space).len();
            } else {
                start = end - inside.trim_start_matches(is_space).len();
            }
            let inside = &text[start..end];
            if inside.is_empty() {
                break;
            }
            let at = if ranges.len() == most {
                None
            } else if from_end {
                inside.char_indices().rfind(|(_, c)| is_space(*c)).map(|(at, c)| at + c.len_utf8())
            } else {
                inside.find(is_space)
            };
            match at {
                None => {
                    ranges.push(start..end);
                    break;
                }
                Some(at) if from_end => {
                    ranges.push(start + at..end);
                    end = start + at;
                }
                Some(at) => {
                    ranges.push(start..start + at);
                    start += at;
                }
            }
        }
        if from_end {
            ranges.reverse();
        }
        Ok(ranges)
    }

    /// `separator.join(items)`; other values are converted to strings.
    pub(super) fn join(&self, separator: &Text<'a>, items: &[Value<'a>]) -> Result<Value<'a>> {
        let mut out = self.builder()?;
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                out.push_text(separator)?;
            }
            super::print::write_str(&mut out, item)?;
        }
        Ok(out.finish())
    }

    /// `text` with `fill` before and after it, so that it has `width` characters.
    pub(super) fn pad(
        &self,
        text: &Text<'a>,
        width: usize,
        fill: &Text<'a>,
        side: Side,
    ) -> Result<Value<'a>> {
        self.meter.read(text.len())?;
        let missing = width.saturating_sub(text.chars().count());
        let before = match side {
            Side::Left => missing,
            Side::Right => 0,
            // As Python divides what is odd.
            Side::Both => missing / 2 + (missing & width & 1),
        };
        let mut out = self.builder()?;
        out.repeat(fill, before)?;
        out.push_text(text)?;
        out.repeat(fill, missing - before)?;
        Ok(out.finish())
    }
}

/// The characters of a text in lower case, one after the other.
struct Lowercase {
    /// What each capital sigma becomes, which depends on the characters around it.
    sigmas: std::vec::IntoIter<char>,
}

impl Lowercase {
    /// Writes the lower case of the next character.
    fn push(&mut self, character: char, out: &mut String) {
        match if character == 'Σ' { self.sigmas.next() } else { None } {
            Some(sigma) => out.push(sigma),
            None => out.extend(character.to_lowercase()),
        }
    }

    /// Passes over the next character.
    fn skip(&mut self, character: char) {
        if character == 'Σ' {
            self.sigmas.next();
        }
    }
}

/// Writes the title case of a character, which the standard library does not have.
fn push_title(character: char, out: &mut String) {
    match character {
        'Ǆ' | 'ǅ' | 'ǆ' => out.push('ǅ'),
        'Ǉ' | 'ǈ' | 'ǉ' => out.push('ǈ'),
        'Ǌ' | 'ǋ' | 'ǌ' => out.push('ǋ'),
        'Ǳ' | 'ǲ' | 'ǳ' => out.push('ǲ'),
        'ŉ' => out.push_str("ʼN"),
        // Georgian has capitals only for texts that are all capitals.
        '\u{10d0}'..='\u{10ff}' => out.push(character),
        // Greek with an iota below, such as ᾀ, whose capital writes the iota after it.
        '\u{1f80}'..='\u{1faf}' => {
            out.push(char::from_u32(u32::from(character) | 8).unwrap_or(character));
        }
        // Of several characters, as of ß, only the first is a capital.
        _ => {
            let mut upper = character.to_uppercase();
            out.extend(upper.next());
            out.extend(upper.flat_map(char::to_lowercase));
        }
    }
}

fn is_titlecase(character: char) -> bool {
    matches!(character, 'ǅ' | 'ǈ' | 'ǋ' | 'ǲ' | '\u{1f88}'..='\u{1f8f}' | '\u{1f98}'..='\u{1f9f}'
        | '\u{1fa8}'..='\u{1faf}' | '\u{1fbc}' | '\u{1fcc}' | '\u{1ffc}')
}

/// Whether a character has case, as letters of Greek have and Chinese ones have not.
fn is_cased(character: char) -> bool {
    character.is_lowercase() || character.is_uppercase() || is_titlecase(character)
}

/// Python's `text.isupper()`.
pub(super) fn is_upper(text: &str) -> bool {
    text.chars().any(char::is_uppercase) && !text.chars().any(|c| c.is_lowercase() || is_titlecase(c))
}

/// Python's `text.islower()`.
pub(super) fn is_lower(text: &str) -> bool {
    text.chars().any(char::is_lowercase) && !text.chars().any(|c| c.is_uppercase() || is_titlecase(c))
}

/// The default fill character and separator.
pub(super) const SPACE: Text<'static> = Text::Borrowed(" ", Origin::Template);

/// What numbers are filled up with.
pub(super) const ZERO: Text<'static> = Text::Borrowed("0", Origin::Template);

/// Where a text is filled up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
    Both,
}

/// Whether a character ends a line for Python.
pub(super) fn is_line_break(character: char) -> bool {
    matches!(character, '\n'..='\r' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Where the lines of Python's `text.splitlines()` are.
pub(super) fn lines(text: &str) -> impl Iterator<Item = std::ops::Range<usize>> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let rest = &text[start..];
        if rest.is_empty() {
            return None;
        }
        let length = rest.find(is_line_break).unwrap_or(rest.len());
        let line = start..start + length;
        let after = &rest[length..];
        start = line.end
            + if after.starts_with("\r\n") { 2 } else { after.chars().next().map_or(0, char::len_utf8) };
        Some(line)
    })
}

/// Where a part begins in a text, in characters.
pub(super) fn find(text: &str, part: &str, from_end: bool) -> Option<usize> {
    let at = if from_end { text.rfind(part) } else { text.find(part) }?;
    Some(text[..at].chars().count())
}
