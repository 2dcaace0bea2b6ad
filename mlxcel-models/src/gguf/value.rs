//! Metadata values. They stay in the file, so an array of a million tokens takes no memory here.

use std::ops::Range;

use super::cursor::Cursor;

/// What a value is, by its number in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Unsigned { bytes: usize },
    Signed { bytes: usize },
    Float { bytes: usize },
    Bool,
    Text,
    Array,
}

/// The kinds in the order of their numbers.
const KINDS: [Kind; 13] = [
    Kind::Unsigned { bytes: 1 },
    Kind::Signed { bytes: 1 },
    Kind::Unsigned { bytes: 2 },
    Kind::Signed { bytes: 2 },
    Kind::Unsigned { bytes: 4 },
    Kind::Signed { bytes: 4 },
    Kind::Float { bytes: 4 },
    Kind::Bool,
    Kind::Text,
    Kind::Array,
    Kind::Unsigned { bytes: 8 },
    Kind::Signed { bytes: 8 },
    Kind::Float { bytes: 8 },
];

impl Kind {
    fn read(cursor: &mut Cursor<'_>) -> Result<Self, Fault> {
        let number = cursor.u32().ok_or(Fault::Truncated)?;
        let kind = usize::try_from(number).ok().and_then(|number| KINDS.get(number).copied());
        kind.ok_or(Fault::UnknownKind(number))
    }

    /// The bytes of a value, where all have as many.
    fn width(self) -> Option<usize> {
        match self {
            Self::Unsigned { bytes } | Self::Signed { bytes } | Self::Float { bytes } => Some(bytes),
            Self::Bool => Some(1),
            Self::Text | Self::Array => None,
        }
    }
}

/// A value of metadata: what it is, and where it lies in the file.
#[derive(Clone, Debug)]
pub(super) enum Value {
    One(Kind, Range<usize>),
    /// Consecutive values of one kind; strings include their lengths.
    Array {
        kind: Kind,
        count: usize,
        range: Range<usize>,
    },
}

/// What is wrong with a value.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Truncated,
    UnknownKind(u32),
    Nested,
}

impl Value {
    /// Reads a value, its kind first; all of it is within the file.
    pub(super) fn read(cursor: &mut Cursor<'_>) -> Result<Self, Fault> {
        let kind = Kind::read(cursor)?;
        if kind != Kind::Array {
            return Ok(Self::One(kind, one(cursor, kind)?));
        }
        let kind = Kind::read(cursor)?;
        let count = cursor.size().ok_or(Fault::Truncated)?;
        let start = cursor.at();
        match (kind, kind.width()) {
            // Nothing that describes a model has arrays in arrays.
            (Kind::Array, _) => return Err(Fault::Nested),
            (_, Some(width)) => {
                let length = count.checked_mul(width).ok_or(Fault::Truncated)?;
                cursor.range(length).ok_or(Fault::Truncated)?;
            }
            // Each text has a length of eight bytes, so this ends where the file does.
            (_, None) => {
                for _ in 0..count {
                    cursor.text().ok_or(Fault::Truncated)?;
                }
            }
        }
        Ok(Self::Array { kind, count, range: start..cursor.at() })
    }
}

/// Where a value that is no array lies; of a text, without its length.
fn one(cursor: &mut Cursor<'_>, kind: Kind) -> Result<Range<usize>, Fault> {
    let range = match kind.width() {
        Some(width) => cursor.range(width),
        None => cursor.text(),
    };
    range.ok_or(Fault::Truncated)
}

/// A whole number.
pub(super) fn integer(kind: Kind, bytes: &[u8]) -> Option<i128> {
    let mut wide = [0; 8];
    wide.get_mut(..bytes.len())?.copy_from_slice(bytes);
    let unsigned = u64::from_le_bytes(wide);
    match kind {
        Kind::Unsigned { .. } => Some(i128::from(unsigned)),
        Kind::Signed { bytes } => {
            let unused = 64 - 8 * u32::try_from(bytes).ok()?;
            Some(i128::from((unsigned << unused).cast_signed() >> unused))
        }
        _ => None,
    }
}

/// A number, whole ones included.
pub(super) fn number(kind: Kind, bytes: &[u8]) -> Option<f64> {
    match kind {
        Kind::Float { bytes: 4 } => Some(f64::from(f32::from_le_bytes(bytes.try_into().ok()?))),
        Kind::Float { .. } => Some(f64::from_le_bytes(bytes.try_into().ok()?)),
        _ => integer(kind, bytes).map(|number| number as f64),
    }
}

/// The values of an array that are no texts, consecutively.
pub(super) fn each(kind: Kind, bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.chunks_exact(kind.width().unwrap_or(usize::MAX))
}

/// The texts of an array, as bytes.
pub(super) fn texts(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut cursor = Cursor::new(bytes);
    std::iter::from_fn(move || bytes.get(cursor.text()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Value, Fault> {
        Value::read(&mut Cursor::new(bytes))
    }

    #[test]
    fn numbers_of_every_width_have_their_sign() {
        assert_eq!(integer(Kind::Signed { bytes: 1 }, &[0xff]), Some(-1));
        assert_eq!(integer(Kind::Unsigned { bytes: 1 }, &[0xff]), Some(255));
        assert_eq!(integer(Kind::Signed { bytes: 8 }, &i64::MIN.to_le_bytes()), Some(i128::from(i64::MIN)));
        assert_eq!(integer(Kind::Unsigned { bytes: 8 }, &[0xff; 8]), Some(i128::from(u64::MAX)));
        assert_eq!(number(Kind::Float { bytes: 4 }, &1.5f32.to_le_bytes()), Some(1.5));
        assert_eq!(number(Kind::Signed { bytes: 2 }, &(-3i16).to_le_bytes()), Some(-3.0));
        assert_eq!(number(Kind::Text, b"12"), None);
    }

    #[test]
    fn counts_beyond_the_file_are_refused_before_anything_is_read() {
        let array = |kind: u32, count: u64| {
            [&9u32.to_le_bytes()[..], &kind.to_le_bytes(), &count.to_le_bytes()].concat()
        };
        for kind in 0..9 {
            assert_eq!(read(&array(kind, u64::MAX)).unwrap_err(), Fault::Truncated);
        }
        assert_eq!(read(&array(9, 1)).unwrap_err(), Fault::Nested);
        assert_eq!(read(&array(13, 1)).unwrap_err(), Fault::UnknownKind(13));
        assert!(matches!(read(&array(8, 0)), Ok(Value::Array { count: 0, .. })));
    }
}
