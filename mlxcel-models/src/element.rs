//! Element types of checkpoint tensors.

use std::fmt;

/// The type of a stored tensor's elements, little-endian in the file.
///
/// The names are those of the safetensors format; [`Display`](fmt::Display) prints them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ElementType {
    /// A boolean in one byte.
    Bool,
    /// 4-bit float of the OCP microscaling formats, two in a byte.
    F4,
    /// 6-bit float with 2 exponent bits of the OCP microscaling formats.
    F6E2M3,
    /// 6-bit float with 3 exponent bits of the OCP microscaling formats.
    F6E3M2,
    /// 8-bit float with 4 exponent bits, without infinities.
    F8E4M3,
    /// 8-bit float with 5 exponent bits.
    F8E5M2,
    /// 8-bit power of two: the scale type of the OCP microscaling formats.
    F8E8M0,
    /// 8-bit float with 4 exponent bits, without infinities and negative zero.
    F8E4M3Fnuz,
    /// 8-bit float with 5 exponent bits, without infinities and negative zero.
    F8E5M2Fnuz,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of an [`F32`](Self::F32).
    BF16,
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 double precision.
    F64,
    /// A complex number of two [`F32`](Self::F32).
    C64,
    /// Signed 8-bit integer.
    I8,
    /// Signed 16-bit integer.
    I16,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
    /// Unsigned 8-bit integer.
    U8,
    /// Unsigned 16-bit integer.
    U16,
    /// Unsigned 32-bit integer; quantized checkpoints pack several values into one.
    U32,
    /// Unsigned 64-bit integer.
    U64,
}

/// Every type with its name in a safetensors header and its size in bits.
const TABLE: &[(ElementType, &str, usize)] = &[
    (ElementType::Bool, "BOOL", 8),
    (ElementType::F4, "F4", 4),
    (ElementType::F6E2M3, "F6_E2M3", 6),
    (ElementType::F6E3M2, "F6_E3M2", 6),
    (ElementType::F8E4M3, "F8_E4M3", 8),
    (ElementType::F8E5M2, "F8_E5M2", 8),
    (ElementType::F8E8M0, "F8_E8M0", 8),
    (ElementType::F8E4M3Fnuz, "F8_E4M3FNUZ", 8),
    (ElementType::F8E5M2Fnuz, "F8_E5M2FNUZ", 8),
    (ElementType::F16, "F16", 16),
    (ElementType::BF16, "BF16", 16),
    (ElementType::F32, "F32", 32),
    (ElementType::F64, "F64", 64),
    (ElementType::C64, "C64", 64),
    (ElementType::I8, "I8", 8),
    (ElementType::I16, "I16", 16),
    (ElementType::I32, "I32", 32),
    (ElementType::I64, "I64", 64),
    (ElementType::U8, "U8", 8),
    (ElementType::U16, "U16", 16),
    (ElementType::U32, "U32", 32),
    (ElementType::U64, "U64", 64),
];

impl ElementType {
    /// The name that safetensors headers use.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// The bits of an element.
    pub fn bits(self) -> usize {
        self.row().2
    }

    /// The bytes of `elements` elements, or `None` if that is not a whole number of bytes or overflows.
    pub fn byte_len(self, elements: usize) -> Option<usize> {
        let bits = elements.checked_mul(self.bits())?;
        bits.is_multiple_of(8).then_some(bits / 8)
    }

    /// Whether dense weights of this type can be used as they are: `F32`, `F16` or `BF16`.
    pub fn is_dense_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::BF16)
    }

    /// The type that a safetensors header calls `name`.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        TABLE.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    fn row(self) -> &'static (Self, &'static str, usize) {
        // The table lists every variant in its order of declaration, which a test holds.
        &TABLE[self as usize]
    }
}

crate::named::serialize_by_name!(ElementType, ElementType::from_name);

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_declaration() {
        for (index, row) in TABLE.iter().enumerate() {
            assert_eq!(row.0 as usize, index, "{}", row.1);
            assert_eq!(ElementType::from_name(row.1), Some(row.0));
        }
        assert_eq!(ElementType::U64 as usize + 1, TABLE.len());
    }

    #[test]
    fn byte_lengths_are_whole_and_do_not_overflow() {
        assert_eq!(ElementType::BF16.byte_len(3), Some(6));
        assert_eq!(ElementType::F4.byte_len(4), Some(2));
        assert_eq!(ElementType::F4.byte_len(3), None);
        assert_eq!(ElementType::F64.byte_len(usize::MAX), None);
    }
}
