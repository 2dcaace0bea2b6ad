//! Reads numbers and strings from the start of a file, with bounds checks.

use std::ops::Range;

/// A position in a file.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// At the beginning of `bytes`.
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Behind the first bytes, as many as `bytes` has at most.
    pub(super) fn behind(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    /// How far it is from the beginning.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Where the next `length` bytes lie; none where fewer follow.
    pub(super) fn range(&mut self, length: usize) -> Option<Range<usize>> {
        let start = self.at;
        let end = start.checked_add(length).filter(|end| *end <= self.bytes.len())?;
        self.at = end;
        Some(start..end)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let range = self.range(N)?;
        self.bytes.get(range)?.try_into().ok()
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A length or a count.
    pub(super) fn size(&mut self) -> Option<usize> {
        self.u64().and_then(|size| usize::try_from(size).ok())
    }

    /// Where a text lies, whose length stands before it.
    pub(super) fn text(&mut self) -> Option<Range<usize>> {
        let length = self.size()?;
        self.range(length)
    }
}
