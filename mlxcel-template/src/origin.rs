//! Tracks where each part of a rendered text comes from, which decides whether control tokens in it are
//! parsed.

use std::ops::Range;

/// Where a part of a text comes from; a later one is trusted less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The template wrote it, or it is one of the checkpoint's special tokens.
    Template,
    /// An answer of the model: the content of a message of the assistant.
    Answer,
    /// Anything else that the template was given.
    Input,
}

/// The origins of a text: where each part ends. Neighbours differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins(Vec<(usize, Origin)>);

impl Origins {
    /// Those of a text of `length` bytes that comes from one place.
    pub fn uniform(length: usize, origin: Origin) -> Self {
        Self(vec![(length, origin)])
    }

    /// Whether a part of this origin would be one more.
    pub(super) fn begins_part(&self, origin: Origin) -> bool {
        self.0.last().is_none_or(|(_, last)| *last != origin)
    }

    /// Adds a part that ends at `end`.
    pub(super) fn push(&mut self, end: usize, origin: Origin) {
        match self.0.last_mut() {
            Some((last_end, last)) if *last == origin => *last_end = end,
            _ => self.0.push((end, origin)),
        }
    }

    /// The parts of `range`.
    pub fn parts(&self, range: Range<usize>) -> impl Iterator<Item = (Range<usize>, Origin)> {
        let first = self.0.partition_point(|(end, _)| *end <= range.start);
        let mut start = range.start;
        self.0[first..].iter().map_while(move |&(end, origin)| {
            let part = start..end.min(range.end);
            start = part.end;
            (!part.is_empty()).then_some((part, origin))
        })
    }

    /// The origins of the first `length` bytes.
    pub fn truncate(&mut self, length: usize) {
        let kept = self.0.partition_point(|(end, _)| *end < length);
        self.0.truncate(kept + 1);
        if let Some((end, _)) = self.0.last_mut() {
            *end = length.min(*end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origin_ranges_are_clipped() {
        let mut origins = Origins::default();
        for (end, origin) in
            [(3, Origin::Template), (5, Origin::Input), (7, Origin::Input), (9, Origin::Answer)]
        {
            origins.push(end, origin);
        }
        let parts = |range| origins.parts(range).collect::<Vec<_>>();
        assert_eq!(parts(0..9), [(0..3, Origin::Template), (3..7, Origin::Input), (7..9, Origin::Answer)]);
        assert_eq!(parts(1..7), [(1..3, Origin::Template), (3..7, Origin::Input)]);
        assert_eq!(parts(3..4), [(3..4, Origin::Input)]);
        assert_eq!(parts(4..4), []);
        origins.truncate(7);
        assert_eq!(origins.parts(0..9).last(), Some((3..7, Origin::Input)));
    }
}
