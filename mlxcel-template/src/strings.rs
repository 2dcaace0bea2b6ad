//! Python's operations on texts, that methods and filters share.

use super::error::{Result, TemplateError};
use super::evaluate::Evaluator;
use super::lexer::is_space;
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
        self.map_text(text, |character, out| out.extend(character.to_lowercase()))
    }

    pub(super) fn capitalize(&self, text: &Text<'a>) -> Result<Value<'a>> {
        let mut first = true;
        self.map_text(text, |character, out| {
            if std::mem::take(&mut first) {
                out.extend(character.to_uppercase());
            } else {
                out.extend(character.to_lowercase());
            }
        })
    }

    /// Capitals at the beginning of words, which are what `begins` says, by the character before.
    pub(super) fn title(&self, text: &Text<'a>, begins: impl Fn(char) -> bool) -> Result<Value<'a>> {
        let mut at_start = true;
        self.map_text(text, |character, out| {
            if at_start {
                out.extend(character.to_uppercase());
            } else {
                out.extend(character.to_lowercase());
            }
            at_start = begins(character);
        })
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
                    return Err(TemplateError::new("the separator is empty"));
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

/// Where the lines of Python's `text.splitlines()` are.
pub(super) fn lines(text: &str) -> impl Iterator<Item = std::ops::Range<usize>> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let rest = &text[start..];
        if rest.is_empty() {
            return None;
        }
        let breaks =
            |c: char| matches!(c, '\n'..='\r' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}');
        let length = rest.find(breaks).unwrap_or(rest.len());
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
